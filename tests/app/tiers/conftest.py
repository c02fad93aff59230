import shutil
import tempfile
from pathlib import Path

import pytest

from espalier.app.run import checked_run


@pytest.fixture
def short_path():
    """Make a folder whose path leaves room for a Unix socket."""
    path = Path(tempfile.mkdtemp(prefix="e"))
    yield path
    shutil.rmtree(path)


@pytest.fixture(autouse=True)
def few_plots(request, monkeypatch):
    """Leave out the plots, which take most of the time of a small run, unless a test asks for them."""
    if "with_plots" not in request.fixturenames:
        monkeypatch.setattr(checked_run, "draw_run", lambda *arguments: None)


@pytest.fixture
def with_plots():
    """Ask for plots."""
