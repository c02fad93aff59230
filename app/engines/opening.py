"""Opens the engine that a run config names."""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from flwr.serverapp import Grid

from espalier.app.engines.engine import Engine
from espalier.app.ground.errors import bad_value
from espalier.app.settings.engine_kinds import EngineKind


@dataclass(frozen=True)
class Opening:
    """What an engine is opened for.

    Parameters
    ----------
    num_clients : int
        Of the run.
    num_edges : int
        Its edges; 0 for a run without.
    settings : Mapping[str, Any]
        Settings of the run by their keys, for the clients.
    seed : int
        Decides the node ids.
    stack : int
        So many clients train side by side, as one computation; 0: each by itself.
    threads : int
        PyTorch threads of a process.
    on_gpu : bool
        Models compute on a GPU.
    grid : Grid, optional
        The one that Flower handed to the ServerApp; None without Flower's runtime.
    """

    num_clients: int
    num_edges: int
    settings: Mapping[str, Any]
    seed: int
    stack: int
    threads: int
    on_gpu: bool
    grid: Grid | None


def open_engine(kind: EngineKind, opening: Opening) -> AbstractContextManager[Engine]:
    """Open an engine.

    Raises
    ------
    UserError
        If a package that it needs is not installed.
    """
    if callable(kind.opener):
        return kind.opener(opening)
    module, _, name = kind.opener.partition(":")
    try:
        opener = getattr(import_module(module), name)
    except ModuleNotFoundError as error:
        if not kind.requires or error.name != kind.requires:
            raise
        allowed = f"another one: it is not installed (pip install {kind.requires})"
        raise bad_value("engine", kind.text, allowed) from None
    found: AbstractContextManager[Engine] = opener(opening)
    return found
