"""What this machine has: processors, their clock and memory. On Linux; elsewhere some of it is unknown, which is 0."""

import os
from pathlib import Path

ROOT = Path("/")


def cpu_count() -> int:
    """Return the number of processors that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 0


def highest_frequency_hz(root: Path = ROOT) -> float:
    """Return the highest frequency of the processors.

    That of the kernel's frequency scaling, over all processors. A machine that can't scale its clock, such as a virtual
    one, only tells the present frequency.

    Parameters
    ----------
    root : Path (default: /)
        The folder that has ``sys`` and ``proc`` in it.

    Returns
    -------
    float
        In Hz; 0 is unknown.
    """
    scaling = sorted(root.glob("sys/devices/system/cpu/cpu[0-9]*/cpufreq"))
    highest = [khz * 1e3 for folder in scaling if (khz := _number(_text(folder / "cpuinfo_max_freq")))]
    if highest:
        return max(highest)
    lines = _text(root / "proc/cpuinfo").splitlines()
    present = [_number(line.partition(":")[2]) * 1e6 for line in lines if line.startswith("cpu MHz")]
    return max(present, default=0.0)


def memory_bytes() -> int:
    """Return the size of the machine's memory; 0 is unknown."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return 0


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _number(text: str) -> float:
    try:
        return max(float(text), 0.0)
    except ValueError:
        return 0.0
