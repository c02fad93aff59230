import warnings

# The command line library that Flower imports warns of its own next version; with warnings as errors it could not be
# imported at all.
with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    import flwr.app  # noqa: F401

import gc
import os

import pytest
import torch
from matplotlib.figure import Figure
from PIL import Image

from espalier.app.engines import in_process
from espalier.app.ground import pictures
from espalier.clients.device.machine import cpu_count
from tests.interrupts import interruptible

FORMATS = pictures.FORMATS
# Until the tests are collected: to look through what is imported takes a sixth of that time.
gc.disable()
# As in the app: the order in which threads add up would change the last bits.
torch.set_num_threads(1)


def pytest_collection_modifyitems(items):
    """Begin with whole deployments (`make test-deploy`), then with what wants Ray.

    Deployments take minutes, and no worker ends alone with one. Tests beside each other stay with one worker of xdist,
    and so one Ray is started and not one for each.
    """
    items.sort(key=lambda item: (item.path.parent.name != "deploy", "ray_here" not in item.fixturenames))


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Let the collector skip what is imported by now: some of Flower's strategies collect for every reply."""
    collected = yield
    gc.collect()
    gc.freeze()
    gc.enable()
    return collected


@pytest.fixture(scope="session", autouse=True)
def _started_programs_take_interrupts():
    """Let the suite pass as a background job, ``nohup make test &``."""
    with interruptible():
        yield


@pytest.fixture(scope="session", autouse=True)
def _workers_of_ray_are_not_nice():
    """Let workers of Ray take turns with the tests' own processes: by default they get what others leave."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_worker_niceness", "0")
        yield


@pytest.fixture(scope="session", autouse=True)
def _each_worker_has_its_share_of_the_cores():
    """Let runs of the tests that go on at the same time share the cores, as those of a sweep do."""
    share = max(cpu_count() // int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")), 1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(in_process, "cpu_count", lambda: share)
        yield


@pytest.fixture(scope="session", autouse=True)
def _pictures_are_not_written():
    """Let pictures be drawn and not written, which takes much longer, unless a test asks for files."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pictures, "FORMATS", {})
        yield


@pytest.fixture(scope="session", autouse=True)
def _disks_are_not_waited_for():
    """Let files be written without a flush to the disk: a short run has thirty, each of milliseconds.

    Tests of what a power cut leaves record the calls.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield


@pytest.fixture
def with_png(monkeypatch):
    """Ask for pictures as PNG files."""
    monkeypatch.setattr(pictures, "FORMATS", {"png": FORMATS["png"]})


@pytest.fixture
def with_pdf(monkeypatch):
    """Ask for pictures as PNG and PDF files, as a run writes them."""
    monkeypatch.setattr(pictures, "FORMATS", FORMATS)


@pytest.fixture
def with_blank_pictures(monkeypatch):
    """Ask for pictures as PNG and PDF files that are blank: to render them takes longer than a short run.

    For tests of which files there are, and of figures as they are before they are rendered.
    """

    def savefig(figure, file, *, format, **options):
        Image.new("RGB", (1, 1)).save(file, format)

    monkeypatch.setattr(pictures, "FORMATS", FORMATS)
    monkeypatch.setattr(Figure, "savefig", savefig)


@pytest.fixture(scope="session", autouse=True)
def _cache_of_the_tests(tmp_path_factory):
    """Keep decoded data out of the user's cache, in this process and all that it starts."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


from tests.on_ray import ray_here  # noqa: E402, F401  (a fixture of all)
