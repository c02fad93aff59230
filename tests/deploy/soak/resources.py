"""What the processes of a deployment hold: threads, file descriptors and memory."""

import os
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

PROGRAMS = ("flower-", "flwr", "superlink.py", "supernode.py", "supervised_run.py")
OTHER = "other"
AMOUNTS = ("threads", "files", "megabytes")


@dataclass(frozen=True)
class Holding:
    """What a process holds at a time.

    Attributes
    ----------
    seconds : float
        The time, on the monotonic clock.
    pid : int
        The process.
    age_seconds : float
        Since it was started.
    program : str
        What it runs.
    threads, files : int
        Its threads and file descriptors.
    megabytes : float
        Its resident memory.
    """

    seconds: float
    pid: int
    age_seconds: float
    program: str
    threads: int
    files: int
    megabytes: float


def processes_of(folder: Path) -> list[int]:
    """Return the processes alive that have a path of this folder in their environment."""
    found = []
    for environ in Path("/proc").glob("[0-9]*/environ"):
        try:
            if f"{folder}/".encode() in environ.read_bytes():
                found.append(int(environ.parent.name))
        except OSError:  # another user's, or gone
            continue
    return found


def holdings(pids: Iterable[int]) -> list[Holding]:
    """Return what processes hold; those that are gone by now hold nothing."""
    return [found for pid in pids if (found := _holding(pid)) is not None]


def _holding(pid: int) -> Holding | None:
    process, now = Path(f"/proc/{pid}"), time.monotonic()
    try:
        status = dict(line.split(":", 1) for line in (process / "status").read_text().splitlines() if ":" in line)
        if status["State"].split()[0] in "ZX":
            return None
        # Fields behind the program's name, which may hold anything, are counted from the third on.
        started = int((process / "stat").read_text().rpartition(")")[2].split()[19]) / os.sysconf("SC_CLK_TCK")
        return Holding(
            round(now, 1),
            pid,
            round(time.clock_gettime(time.CLOCK_BOOTTIME) - started, 1),
            _program(process),
            int(status["Threads"]),
            len(list((process / "fd").iterdir())),
            round(int(status["VmRSS"].split()[0]) / 1000, 1),
        )
    except (OSError, KeyError):
        return None


def _program(process: Path) -> str:
    arguments = (process / "cmdline").read_text().split("\0")
    names = (Path(argument).name for argument in arguments[:3])
    return next((name for name in names if name.startswith(PROGRAMS)), OTHER)


def totals(held: Iterable[Holding]) -> dict[str, dict[str, float]]:
    """Return, for each program, the number of its processes and what all of them hold."""
    found: dict[str, dict[str, float]] = {}
    for one in held:
        sums = found.setdefault(one.program, {"processes": 0, **dict.fromkeys(AMOUNTS, 0)})
        sums["processes"] += 1
        for amount in AMOUNTS:
            sums[amount] = round(sums[amount] + getattr(one, amount), 1)
    return dict(sorted(found.items()))


def as_line(held: Holding) -> dict[str, object]:
    """Return it for a file."""
    return asdict(held)
