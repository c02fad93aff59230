"""``report.tracker = "tensorboard"``: files that ``tensorboard --logdir`` shows."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.image import imread
from torch.utils.tensorboard import SummaryWriter

from espalier.app.reports.trackers.figures import edge_figures, failures_in, figures_of
from espalier.app.reports.trackers.kept import last_round_in, pictures_in


class TensorBoard:
    """Writes event files.

    Models have no form there: they stay in the results folder, whose path is among the texts.

    Parameters
    ----------
    folder : str (default: "")
        Where each run gets a folder of its results folder's name, in one of its group's; "": ``tensorboard`` in the
        results folder.
    """

    def __init__(self, folder: str = "") -> None:
        self._parent = Path(folder).expanduser().absolute() if folder else None
        self._writer: SummaryWriter | None = None

    def run_begins(self, settings: Mapping[str, Any], folder: Path) -> None:
        """Open the run's files; what they have of rounds that a resumed run repeats is purged."""
        place = self._parent / str(settings["report.group"]) / folder.name if self._parent else folder / "tensorboard"
        last = last_round_in(folder)
        self._folder, self._writer = folder, SummaryWriter(str(place), purge_step=last + 1)
        rows = "".join(f"\n| {key} | {_cell(value)} |" for key, value in settings.items())
        self._writer.add_text("settings", f"results: {_cell(folder)}\n\n| key | value |\n|---|---|{rows}", last)

    def edges_over(self, number: int, lines: Sequence[Mapping[str, Any]]) -> None:
        """Write the figures of a round's edges, and who failed there."""
        self._write(number, edge_figures(lines), failures_in(lines))

    def round_over(self, number: int, line: Mapping[str, Any]) -> None:
        """Write the figures of a round."""
        self._write(number, figures_of(line), failures_in([line]))
        if self._writer:
            self._writer.flush()

    def run_over(self, summary: Mapping[str, Any]) -> None:
        """Write the plots."""
        if self._writer:
            for picture in pictures_in(self._folder):
                pixels = imread(picture)[..., :3]
                self._writer.add_image(picture.stem, pixels, summary["rounds"], dataformats="HWC")

    def close(self) -> None:
        """Write what is left."""
        if self._writer:
            self._writer.close()

    def _write(self, number: int, figures: Mapping[str, float], failures: Sequence[str]) -> None:
        if not self._writer:
            return
        for name, value in figures.items():
            self._writer.add_scalar(name, value, number)
        if failures:
            self._writer.add_text("failures", "\n".join(f"- {text}" for text in failures), number)


def _cell(value: object) -> str:
    return f"`{value}`".replace("|", "\\|")
