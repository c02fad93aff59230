"""Makes the pictures of the page in ``docs/data``: ``python docs/page_pictures.py [NAME ...]`` in the project's tree.

It makes small runs in a temporary folder, opens their pages in Chromium, and writes what is to be seen: a run that goes
on, one that is over with two edges, 100 clients, a planned run, and the width of a phone. Chromium and its driver are
Debian's (``apt-get install chromium chromium-driver``).
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.browser import Browser, browser  # noqa: E402
from espalier.app.page.command import PAGE, write_page  # noqa: E402
from espalier.app.page.runs import Runs  # noqa: E402
from espalier.app.page.server import LOCAL, Source, opened  # noqa: E402

DATA = ROOT / "docs/data"
QUICK = {"report.plots": False, "batches-per-epoch": 2}
OVER = QUICK | {"algorithm": "phsfl", "alpha": 0.1, "global-rounds": 12}
MANY = QUICK | {"num-clients": 100, "num-edges": 4, "global-rounds": 8, "data.min-samples": 2}
MANY |= {"availability.mode": "markov", "availability.drop-out": 0.1}
PLANNED = QUICK | {"algorithm": "rawhfl", "num-clients": 18, "num-edges": 3, "plan.selected-per-edge": 2}
PLANNED |= {"global-rounds": 12}
LIVE = QUICK | {"global-rounds": 400, "num-edges": 3, "num-clients": 12}
OPEN = "document.querySelectorAll('#tiers details').forEach((one) => (one.open = true));"
SHOW = "document.querySelector(arguments[0]).scrollIntoView();"


def arguments(folder: Path, settings: dict[str, object]) -> list[str]:
    """Return the command that makes a run."""
    given = [f"{key}={json.dumps(value)}" for key, value in settings.items()]
    return [sys.executable, "-m", "espalier", *given, f"output-dir={folder}"]


def made(folder: Path, settings: dict[str, object]) -> str:
    """Make a run and write its page; return the page's address."""
    subprocess.run(arguments(folder, settings), check=True, stdout=subprocess.DEVNULL, cwd=ROOT)
    write_page(folder / PAGE, Runs([folder]))
    return (folder / PAGE).as_uri()


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """Show a run as ``espalier watch`` does."""
    with opened(LOCAL, 0, "", Source(Runs([folder]))) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.url
        finally:
            server.shutdown()
            thread.join()


def take(own: Browser, name: str, width: int, height: int, part: str = "header", before: str = "") -> None:
    """Write a picture of a part of the page that is open."""
    own.resize(width, height)
    own.run(before + SHOW, part)
    own.wait("return new Promise((told) => requestAnimationFrame(() => requestAnimationFrame(() => told(true))))")
    own.shot(DATA / f"page-{name}.png")
    print(DATA / f"page-{name}.png", flush=True)


def live(own: Browser, folder: Path) -> None:
    """Write a picture of a run that goes on."""
    run = subprocess.Popen(arguments(folder, LIVE), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=ROOT)
    try:
        while not (folder / "metrics.jsonl").exists():
            if run.poll() is not None:
                raise SystemExit("the run that was to go on has ended")
        with served(folder) as url:
            own.open(url)
            own.wait("return /running, round ([5-9]|[1-9]\\d+) of/.test(document.querySelector('.title').textContent)")
            take(own, "live", 1100, 900)
    finally:
        run.terminate()
        run.wait()


def over(own: Browser, folder: Path) -> None:
    """Write pictures of a run that is over: its curves, its tiers, and as a phone shows it."""
    own.open(made(folder, OVER))
    take(own, "over", 1100, 900)
    take(own, "two-edges", 1100, 620, "#tiers", OPEN)
    take(own, "phone", 390, 844)


def hundred(own: Browser, folder: Path) -> None:
    """Write a picture of the table of 100 clients, who come and go."""
    own.open(made(folder, MANY))
    take(own, "hundred", 1100, 900, "#clients")


def planned(own: Browser, folder: Path) -> None:
    """Write a picture of plans."""
    own.open(made(folder, PLANNED))
    take(own, "planned", 1100, 1000, "#plans")


def main() -> None:
    """Make those that the command line names, or all."""
    pictures = {"over": over, "hundred": hundred, "planned": planned, "live": live}
    with tempfile.TemporaryDirectory() as root, browser() as own:
        for name in sys.argv[1:] or pictures:
            pictures[name](own, Path(root) / name)


if __name__ == "__main__":
    main()
