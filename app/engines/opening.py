"""Opens the engine that a run config names."""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from flwr.serverapp import Grid

from espalier.app.engines.engine import Engine
from espalier.app.ground.errors import FAULTS, UserError, bad_value
from espalier.app.ground.object_spec import error_line
from espalier.app.ground.registered import load_built_in
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
    workers : int (default: 1)
        So many clients of this process may run at the same time, in threads; 0: as many as pay.
    cores : int (default: 0)
        Of this machine, for the run; 0: all.
    """

    num_clients: int
    num_edges: int
    settings: Mapping[str, Any]
    seed: int
    stack: int
    threads: int
    on_gpu: bool
    grid: Grid | None
    workers: int = 1
    cores: int = 0


def open_engine(kind: EngineKind, opening: Opening) -> AbstractContextManager[Engine]:
    """Open an engine.

    Raises
    ------
    UserError
        If a package that it needs is not installed, or one of a user's own can't be opened.
    """
    opener = kind.opener
    try:
        if isinstance(opener, str):
            opener = load_built_in(opener, "engine", kind.text, kind.requires, kind.requires)
        opened = opener(opening)
        is_opened = isinstance(opened, AbstractContextManager)
    except UserError:
        raise
    except FAULTS as error:
        if not kind.written:
            raise
        raise bad_value("engine", kind.text, f"one that can be opened ({error_line(error)})") from None
    if not is_opened:
        raise bad_value("engine", kind.text, f"one that opens a context manager, not a {type(opened).__name__}")
    return opened
