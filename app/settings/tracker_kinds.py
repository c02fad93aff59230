"""The trackers that a run config can name: who gets the figures of a run."""

from dataclasses import dataclass
from typing import Any

from espalier.app.ground.object_spec import ObjectSpec, parse_object
from espalier.app.ground.registered import unknown_name
from espalier.app.settings.values import between_commas

KEY = "report.tracker"


@dataclass(frozen=True)
class TrackerKind:
    """A tracker that comes with the app.

    Parameters
    ----------
    name : str
        As the run config calls it, and the extra by which its package is installed.
    maker : str
        What returns one, for the arguments in the run config: ``module:NAME``, which other runs do not import.
    requires : str
        The module that has to be installed for it.
    """

    name: str
    maker: str
    requires: str


TRACKERS = {
    kind.name: kind
    for kind in (
        TrackerKind("tensorboard", "espalier.app.reports.trackers.tensorboard:TensorBoard", "tensorboard"),
        TrackerKind("mlflow", "espalier.app.reports.trackers.mlflow:MLflow", "mlflow"),
        TrackerKind("wandb", "espalier.app.reports.trackers.wandb:WandB", "wandb"),
        TrackerKind("trackio", "espalier.app.reports.trackers.trackio:Trackio", "trackio"),
    )
}
FORM = f"{', '.join(TRACKERS)}, each with arguments or without, or package.module:NAME(argument=value, ...) of your own"


@dataclass(frozen=True)
class Trackers:
    """Who gets the figures of a run, like ``"tensorboard, mlflow(uri='file:runs')"``; nobody for ``""``.

    Parameters
    ----------
    specs : tuple[ObjectSpec, ...]
        Each of them; without a module it is one of `TRACKERS`.
    text : str
        As they were written.
    """

    specs: tuple[ObjectSpec, ...]
    text: str

    @property
    def own(self) -> str:
        """Those of a user's own, as they were written; an empty text for none."""
        return ", ".join(spec.text for spec in self.specs if spec.module)


def parse_trackers(given: Any) -> Trackers:
    """Return whom a setting names.

    Raises
    ------
    ValueError
        If it is no such list; the text says what is allowed.
    UserError
        If there is no tracker of a name.
    """
    if isinstance(given, Trackers):
        return given
    if not isinstance(given, str):
        raise ValueError("a string")
    specs = tuple(map(_spec, between_commas(given))) if given else ()
    named = [spec.name for spec in specs if not spec.module]
    if len(set(named)) < len(named):
        raise ValueError(f"each tracker once: {FORM}")
    return Trackers(specs, given)


def _spec(text: str) -> ObjectSpec:
    try:
        spec = ObjectSpec(KEY, text, *parse_object(text))
    except ValueError:
        raise ValueError(FORM) from None
    if not spec.module and spec.name not in TRACKERS:
        raise unknown_name(spec, TRACKERS)
    return spec
