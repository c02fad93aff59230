"""The engines that a run config can name: where clients are, and who opens that."""

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from espalier.app.ground.reasons import unused
from espalier.app.ground.registered import own_spec, value_named
from espalier.app.settings.sections import RayWorkers


@dataclass(frozen=True)
class EngineKind:
    """An engine. One of your own is named in the run config: ``engine="your_package.module:NAME"``.

    Parameters
    ----------
    name : str
        As the run config calls it.
    opener : Callable[[Opening], AbstractContextManager[Engine]] | str
        Opens it for a run, and closes it; of built-in ones ``module:function``, which other runs do not import. See
        `espalier.app.engines.opening.Opening`.
    is_flowers : bool (default: False)
        Its clients are nodes of Flower's runtime: they have configs of their own, and can be late.
    in_this_process : bool (default: False)
        Clients are in this process, and use the data that it has loaded.
    has_workers : bool (default: False)
        Processes of its own, the settings of ``ray`` say how many, run edges with all of their clients.
    requires : str (default: "")
        The package that has to be installed for it.
    written : str (default: "")
        As a run config names it; set where it is looked up.
    """

    name: str
    opener: Callable[[Any], AbstractContextManager[Any]] | str
    is_flowers: bool = False
    in_this_process: bool = False
    has_workers: bool = False
    requires: str = ""
    written: str = ""

    @property
    def text(self) -> str:
        """As a run config names it."""
        return self.written or self.name

    @property
    def without_use(self) -> Iterable[tuple[Iterable[str], str]]:
        """Keys that it has no use for, and why."""
        name, is_simulated = f"engine = {self.text!r}", not self.is_flowers
        return unused(
            (is_simulated, ("deploy.reply-timeout",), f"with {name} nobody is late"),
            (is_simulated, ("deploy.wait-for-nodes",), f"with {name} clients are there from the start"),
            (is_simulated, ("deploy.transport",), f"with {name} no message starts a process"),
            (is_simulated, ("deploy.nodes-move",), f"with {name} no node has a config that changes"),
            (is_simulated, ("edge-names",), f"with {name} edges are named by their numbers"),
            (not self.has_workers, RayWorkers.own_keys(), name),
        )


ENGINES = {
    kind.name: kind
    for kind in (
        EngineKind("flower", "espalier.app.engines.flower:opened", is_flowers=True),
        EngineKind("in-process", "espalier.app.engines.in_process:opened", in_this_process=True),
        EngineKind("ray", "espalier.app.engines.ray:opened", has_workers=True, requires="ray"),
    )
}


def engine_named(text: str) -> EngineKind:
    """Return the built-in engine of this name, or a user's own; UserError if there is none."""
    return value_named("engine", text, ENGINES, EngineKind)


def engine_unimported(text: str) -> EngineKind:
    """Return the engine of a name, for one of a user's own a stand-in of that name; UserError if it is no such name."""
    return ENGINES.get(text) or EngineKind(own_spec("engine", text, ENGINES).text, "", written=text)
