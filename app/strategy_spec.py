"""Flower's strategies by name, with parameters, as written in the run config: ``"FedAdam(eta=0.01)"``."""

import ast
import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from flwr.serverapp import strategy as flower_strategies
from flwr.serverapp.strategy import Strategy

from app.errors import bad_value

# All of Flower's strategies that train weight arrays and need no other strategy inside.
STRATEGIES = (
    "Bulyan",
    "FedAdagrad",
    "FedAdam",
    "FedAvg",
    "FedAvgM",
    "FedMedian",
    "FedProx",
    "FedTrimmedAvg",
    "FedYogi",
    "Krum",
    "MultiKrum",
    "QFedAvg",
)

# These must stay as the clients know them.
FIXED = ("weighted_by_key", "arrayrecord_key", "configrecord_key")
SHARES = ("fraction_train", "fraction_evaluate")
POSITIVE = ("client_learning_rate",)
KINDS = {float: "a number", int: "an integer", str: "a string"}


@dataclass(frozen=True)
class StrategySpec:
    """A strategy of Flower's and the parameters it was given.

    Parameters
    ----------
    key : str
        The run-config key it stands in, for error messages.
    text : str
        As the user wrote it.
    name : str
        One of `STRATEGIES`.
    parameters : tuple[tuple[str, Any], ...]
        Names and values.
    """

    key: str
    text: str
    name: str
    parameters: tuple[tuple[str, Any], ...]

    def build(self, defaults: Mapping[str, Any]) -> Strategy:
        """Return a new strategy; its own parameters win over `defaults`."""
        try:
            return getattr(flower_strategies, self.name)(**{**defaults, **dict(self.parameters)})
        except (TypeError, ValueError) as error:
            raise bad_value(self.key, self.text, f"what Flower's {self.name} takes ({error})") from None

    def check(self) -> None:
        """Raise UserError for parameters that the strategy lacks, needs or refuses."""
        known = _parameters(self.name)
        for name, value in self.parameters:
            if name not in known:
                raise bad_value(self.key, self.text, f"a parameter of {self.name}: {', '.join(known)}")
            wanted = next((kind for kind in KINDS if known[name].annotation is kind), None)
            accepted = (int, float) if wanted is float else wanted
            if accepted and (isinstance(value, bool) or not isinstance(value, accepted)):
                raise bad_value(self.key, self.text, f"{KINDS[wanted]} for {name}")
            if name in SHARES and not 0 < value <= 1:
                raise bad_value(self.key, self.text, f"a number > 0 and <= 1 for {name}")
            if name in POSITIVE and not value > 0:
                raise bad_value(self.key, self.text, f"a number > 0 for {name}")
        self.build({})


@lru_cache
def parse_strategy(key: str, text: str) -> StrategySpec:
    """Parse ``Name`` or ``Name(parameter=value, ...)``.

    Raises
    ------
    UserError
        If it is not of this form or the name is not one of `STRATEGIES`.
    """
    form = "NAME or NAME(parameter=value, ...) with NAME one of " + ", ".join(STRATEGIES)
    try:
        node = ast.parse(text.strip(), mode="eval").body
        call = node if isinstance(node, ast.Call) else ast.Call(node, [], [])
        if not isinstance(call.func, ast.Name) or call.args:
            raise ValueError
        parameters = tuple((str(k.arg), ast.literal_eval(k.value)) for k in call.keywords)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise bad_value(key, text, form) from None
    if call.func.id not in STRATEGIES:
        raise bad_value(key, text, form)
    return StrategySpec(key, text, call.func.id, parameters)


@lru_cache
def _parameters(name: str) -> dict[str, inspect.Parameter]:
    """Return what a config can set: numbers and strings, not functions."""
    signature = inspect.signature(getattr(flower_strategies, name).__init__)
    return {
        key: parameter
        for key, parameter in signature.parameters.items()
        if key not in ("self", *FIXED) and "Callable" not in str(parameter.annotation)
    }
