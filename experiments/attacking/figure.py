"""A picture of images and of what attacks make of them."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes

from espalier.app.ground.pictures import save_plot
from experiments.attacking import hijack, inverted_updates
from experiments.attacking.records import Pictures

SHOWN = 4  # images of an attack
SEED = 0
# Examples are drawn anew where each is protected, so their rows would show other images.
SETTINGS = tuple(
    replace(one, defences=tuple(d for d in one.defences if "example" not in d.name))
    for one in inverted_updates.SETTINGS[:2]
)
CASES = tuple(case for case in hijack.CASES if case.cut == 1)


def pictures() -> list[Pictures]:
    """Make the attacks that are shown, and return their images."""
    found = [*inverted_updates.measured(SEED, SETTINGS), *hijack.measured(SEED, CASES)]
    return [one for one in found if isinstance(one, Pictures)]


def draw(path: Path, shown: Sequence[Pictures]) -> None:
    """Draw a row for each attack and defence: on the left images, on the right what was made of them."""

    def fill(axes: Sequence[Axes], shown: Sequence[Pictures]) -> None:
        for number, own in enumerate(shown):
            row = axes[2 * SHOWN * number : 2 * SHOWN * (number + 1)]
            for ax, image in zip(row, [*own.true[:SHOWN], *own.rebuilt[:SHOWN]], strict=True):
                ax.imshow(image[0].numpy(), cmap="gray_r", vmin=0, vmax=1)
                ax.set_xticks([])
                ax.set_yticks([])
                ax.grid(visible=False)
            what = own.setting.partition(",")[0]
            text = f"{own.attack}, {what}: {own.defence.replace('`', '')}"
            row[0].set_ylabel(text, rotation=0, ha="right", va="center", fontsize=7)

    title = "what a client trained on (left four), and what the edge rebuilt (right four)"
    options: dict[str, Any] = {"width": 8.4, "height": 0.52 * len(shown) + 0.5}
    save_plot(path, title, fill, shown, rows=len(shown), columns=2 * SHOWN, **options)
