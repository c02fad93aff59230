from pathlib import Path

import pytest

from espalier.app.ground.durable import PART


@pytest.fixture
def figures(monkeypatch):
    """The figures that are drawn, by file name."""
    from matplotlib.figure import Figure

    drawn = {}
    save = Figure.savefig

    def savefig(figure, file, **options):
        drawn[Path(file.name).name.removesuffix(PART)] = figure
        save(figure, file, **options)

    monkeypatch.setattr(Figure, "savefig", savefig)
    return drawn
