"""Strategies by name, with parameters, as written in the run config.

Flower's are ``"FedAdam(eta=0.01)"``, those of other packages ``"package.module:Name(parameter=1.0)"``.
"""

import difflib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, NamedTuple

from flwr.serverapp import strategy as flower_strategies
from flwr.serverapp.strategy import FedProx, Strategy

from espalier.app.ground.errors import bad_value
from espalier.app.ground.object_spec import ObjectSpec, parse_object
from espalier.strategies import EdgeRounds
from espalier.strategies.edges import edge_of
from espalier.strategies.flower_strategies import layers

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
FIXED = ("weighted_by_key", "arrayrecord_key", "configrecord_key", "train_loss_key")


class Bound(NamedTuple):
    """What the value of some parameters may be."""

    names: tuple[str, ...]
    allows: Callable[[float], bool]
    allowed: str
    kind: type = float
    of_any: bool = True  # also of a strategy of a user's own, where a parameter of this name may mean anything


BOUNDS = (
    Bound(("fraction_train", "fraction_evaluate"), lambda value: 0 < value <= 1, "a number > 0 and <= 1"),
    Bound(("client_learning_rate",), lambda value: value > 0, "a number > 0"),
    Bound(("server_learning_rate", "eta", "eta_l"), lambda value: value > 0, "a number > 0", of_any=False),
    Bound(("proximal_mu", "q", "tau"), lambda value: value >= 0, "a number >= 0", of_any=False),
    Bound(("server_momentum", "beta_1", "beta_2"), lambda value: 0 <= value < 1, "a number >= 0 and < 1", of_any=False),
    Bound(("num_malicious_nodes",), lambda value: value >= 0, "an integer >= 0", int),
    Bound(("num_nodes_to_select",), lambda value: value >= 1, "an integer >= 1", int),
)

STRATEGY_ALLOWED = "a subclass of flwr.serverapp.strategy.Strategy, or a function that returns a strategy"
KINDS = {float: "a number", int: "an integer", str: "a string"}


@dataclass(frozen=True)
class StrategySpec(ObjectSpec):
    """A strategy and the parameters it was given; without a module it is Flower's own, one of `STRATEGIES`."""

    @property
    def maker(self) -> Callable[..., Strategy]:
        """The strategy's class, or a function that makes it; UserError if it can't be imported or is neither."""
        if not self.module:
            return getattr(flower_strategies, self.name)
        found = self.load()
        if not (issubclass(found, Strategy) if isinstance(found, type) else callable(found)):
            raise bad_value(self.key, self.text, STRATEGY_ALLOWED)
        return found

    @property
    def is_plain(self) -> bool:
        """Whether it is Flower's FedAvg, without parameters."""
        return (self.module, self.name, tuple(self.parameters)) == ("", "FedAvg", ())

    def has_any(self, kinds: type[Strategy] | tuple[type[Strategy], ...]) -> bool:
        """Return whether the strategy, or one inside of it, is of one of these classes."""
        return any(isinstance(layer, kinds) for layer in layers(self.build({})))

    @property
    def proximal_mu(self) -> float:
        """How strongly it pulls clients' steps to the model that they began from, as `FedProx` does."""
        return max((own.proximal_mu for own in layers(self.build({})) if isinstance(own, FedProx)), default=0.0)

    @property
    def files(self) -> set[str]:
        """The files with code of the user's: those of the strategies' classes and of the function; none of Flower's."""
        classes = {kind for layer in layers(self.build({})) for kind in type(layer).__mro__}
        return {file for one in (*classes, self.maker) if (file := _file_of(one))} if self.module else set()

    def takes(self, name: str) -> bool:
        """Return whether the strategy has a parameter of this name."""
        known, takes_any = _parameters(self.maker)
        return takes_any or name in known

    def build(self, defaults: Mapping[str, Any]) -> Strategy:
        """Return a new strategy; its own parameters win over those of `defaults` that it has."""
        given = {name: value for name, value in defaults.items() if self.takes(name)}
        strategy = self.call(self.maker, **given)
        if not isinstance(strategy, Strategy):
            raise bad_value(self.key, self.text, f"{STRATEGY_ALLOWED}, not {type(strategy).__name__}")
        return strategy

    def check(self) -> None:
        """Raise UserError for parameters that the strategy lacks, needs or refuses."""
        known, takes_any = _parameters(self.maker)
        for name, value in self.parameters:
            if name not in known:
                if takes_any:
                    continue
                raise bad_value(self.key, self.text, f"a parameter of {self.name}: {', '.join(known)}")
            bounds = [bound for bound in BOUNDS if name in bound.names and (bound.of_any or not self.module)]
            usual = next((bound.kind for bound in bounds), None)
            wanted = next((kind for kind in KINDS if known[name].annotation is kind), usual)
            if wanted and (
                isinstance(value, bool) or not isinstance(value, (int, float) if wanted is float else wanted)
            ):
                raise bad_value(self.key, self.text, f"{KINDS[wanted]} for {name}")
            for bound in bounds:
                if not bound.allows(value):
                    raise bad_value(self.key, self.text, f"{bound.allowed} for {name}")
        given = dict(self.parameters)
        if missing := [name for name, p in known.items() if p.default is p.empty and name not in given]:
            example = f"{self.name}({', '.join(f'{name}=...' for name in (*given, *missing))})"
            raise bad_value(self.key, self.text, f"{example}: {self.name} needs {', '.join(missing)}")
        self.build({})


@lru_cache
def parse_strategy(key: str, text: str) -> StrategySpec:
    """Parse ``Name`` or ``Name(parameter=value, ...)``, for a strategy that is not Flower's with ``package.module:``.

    Raises
    ------
    UserError
        If it is not of this form or the name is not one of `STRATEGIES`.
    """
    names = ", ".join(STRATEGIES)
    form = f"NAME or NAME(parameter=value, ...) with NAME one of {names}, or package.module:NAME of your own"
    try:
        module, name, parameters = parse_object(text)
    except ValueError:
        raise bad_value(key, text, form) from None
    if not module and name not in STRATEGIES:
        close = difflib.get_close_matches(name, STRATEGIES, n=1)
        raise bad_value(key, text, f"{form}: did you mean {close[0]}?" if close else form)
    return StrategySpec(key, text, module, name, parameters)


def _file_of(one: Any) -> str | None:
    """Return the file of a class or a function, unless it is Flower's or Python's own."""
    one = one.func if isinstance(one, partial) else one
    one = one if inspect.isclass(one) or inspect.isroutine(one) else type(one)  # of an object that is called
    if str(one.__module__).partition(".")[0] in ("flwr", "builtins", "abc"):
        return None
    try:
        return inspect.getsourcefile(one)
    except (TypeError, OSError):  # there is none
        return None


@lru_cache
def _parameters(maker: Callable[..., Strategy]) -> tuple[dict[str, inspect.Parameter], bool]:
    """Return what a config can set: numbers and strings, not functions; and whether others may be given, for a base."""
    every = inspect.signature(maker).parameters
    known = {
        name: parameter
        for name, parameter in every.items()
        if name not in FIXED
        and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        and "Callable" not in str(parameter.annotation)
    }
    return known, any(parameter.kind == parameter.VAR_KEYWORD for parameter in every.values())


def strategy_of(edge: Strategy | EdgeRounds) -> Strategy | None:
    """Return what aggregates the models of an edge's clients: a strategy, or None where an edge does so by itself."""
    return edge if isinstance(edge, Strategy) else edge_of(edge).inner.strategy


# Of edges, where the cloud's own strategy has nothing to do, or is elsewhere.
PLAIN_MEAN = parse_strategy("cloud-strategy", "FedAvg")
