"""What made a run, and where."""

import os
import platform
import subprocess
from functools import lru_cache
from importlib import import_module
from pathlib import Path

import torch

from espalier.app.reports.folder import ResultsFolder, damaged

MADE_BY = "made-by.json"
MAKER = ("version", "commit", "machine")  # what tables say of it
TREE = Path(__file__).resolve().parents[2]


def makers_of(folder: ResultsFolder) -> list[dict[str, str]]:
    """Return what made a run so far, one after the other; UserError if the file does not hold that."""
    makers = folder.read_json(MADE_BY) or []
    if not (
        isinstance(makers, list)
        and all(isinstance(one, dict) and all(isinstance(one.get(key), str) for key in MAKER) for one in makers)
    ):
        raise damaged(folder.path / MADE_BY)
    return makers


def note_made_by(folder: ResultsFolder) -> None:
    """Add to ``made-by.json`` what makes a run from here on, unless it is the same as before."""
    makers = makers_of(folder)
    if not makers or makers[-1] != maker():
        folder.write_json(MADE_BY, [*makers, maker()])


@lru_cache(maxsize=1)
def maker() -> dict[str, str]:
    """Return the version, the commit where the code is in a git tree of its own, and the machine."""
    return {
        "version": import_module("espalier.version").__version__,
        "commit": _commit(TREE),
        "machine": ", ".join([platform.node(), _processor(), f"{os.cpu_count()} cores", *_gpus()]),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def _commit(tree: Path) -> str:
    """Return the commit of a git tree, with ``+changes`` where files differ from it; an empty text for none."""
    if not (tree / ".git").exists():
        return ""
    command = ["git", "-C", str(tree), "describe", "--always", "--abbrev=12", "--exclude=*", "--dirty=+changes"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip()


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _gpus() -> list[str]:
    if not torch.cuda.is_available():
        return []
    return [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
