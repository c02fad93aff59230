"""What a resumed run needs, as it is saved after every global round."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal

from flwr.app import ArrayRecord
from pydantic import BaseModel, ConfigDict, Field, ValidationError, WrapValidator, model_validator


def _clients(value: Any, listed: Callable[[Any], Any]) -> Any:
    """Return a block of clients, as it is or of its text, or what else is `listed`."""
    if isinstance(value, str) and (ends := re.fullmatch(r"(\d{1,12})-(\d{1,12})", value)):
        return range(int(ends[1]), int(ends[2]) + 1)
    return value if isinstance(value, range) else listed(value)


Clients = Annotated[Sequence[int], WrapValidator(_clients)]


class RunState(BaseModel):
    """The state of a run after a global round.

    Attributes
    ----------
    version : int
        Of this form. States that name none are of the first.
    round : int
        The global round, from 1.
    data : str
        The data's fingerprint.
    edges : dict[str, list[int] | range]
        Client numbers by edge. A block of them is saved by its ends, such as ``"0-999"``.
    wall_seconds : float
        Since the run began.
    arrays : ArrayRecord
        The global model, without weights that do not travel.
    strategies, clients, world : dict[str, Any]
        What `Hierarchical`, the engine's clients and `World` keep from round to round.
    best : dict[str, Any]
        The best round so far and its model, see `BestRound`; empty where there is none.
    settings : dict[str, Any]
        Those that the run was made with and must go on with, by key; empty where an earlier edition saved none.
    files : dict[str, str]
        A hash of what each file holds that settings of `Tag.CONTENT` name, by key; likewise.
    bytes_at_work : dict[str, Any]
        What was counted in edge rounds that have not come in, see `ByteMeter`; empty before the edition that saves it.
    lines : int
        Of ``metrics.jsonl`` up to this round; 0 where an earlier edition did not count them.
    """

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, allow_inf_nan=False, arbitrary_types_allowed=True
    )

    version: Literal[1] = 1
    round: Annotated[int, Field(gt=0)]
    data: str
    edges: Mapping[str, Clients]
    wall_seconds: Annotated[float, Field(ge=0)]
    arrays: ArrayRecord
    strategies: dict[str, Any]
    clients: dict[str, Any]
    world: dict[str, Any]
    best: dict[str, Any] = Field(default_factory=dict)
    settings: dict[str, Any] = Field(default_factory=dict)
    files: dict[str, str] = Field(default_factory=dict)
    bytes_at_work: dict[str, Any] = Field(default_factory=dict)
    lines: Annotated[int, Field(ge=0)] = 0

    def as_data(self) -> dict[str, Any]:
        """Return it as plain data."""
        edges = {name: f"{own[0]}-{own[-1]}" if isinstance(own, range) else own for name, own in self.edges.items()}
        return {**dict(self), "edges": edges}

    @model_validator(mode="before")
    @classmethod
    def _without_models_of_edges(cls, values: dict[str, Any]) -> dict[str, Any]:
        """Leave out what earlier editions saved and nobody read."""
        return {key: value for key, value in values.items() if key != "edge_arrays"}


def as_block(clients: Sequence[int]) -> Sequence[int]:
    """Return client numbers as a range where they are consecutive."""
    block = range(clients[0], clients[-1] + 1) if clients else range(0)
    return block if clients and list(block) == list(clients) else clients


def run_state_of(values: Mapping[str, Any]) -> RunState:
    """Return the state that `values` describe.

    Raises
    ------
    ValueError
        If they are no such state; in one line.
    """
    try:
        return RunState.model_validate(dict(values))
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        raise ValueError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from None
