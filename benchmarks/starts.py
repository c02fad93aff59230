"""What it takes to start a process, with and without the garbage collector while it imports the app.

``python -m benchmarks.starts`` prints CPU seconds from start to end (median of seven, in turns) of a process that
imports the ClientApp, as one does on a device for each message, and of ``espalier --help``; and their share of the CPU
seconds of the same with the collector.
"""

import resource
import subprocess
import sys
from statistics import median

REPEATS = 7
# As it is, and with the collector: what the first imports without it.
PROGRAMS = {
    "the ClientApp": ("import espalier.app.client", "import espalier.app.wiring.clients"),
    "espalier --help": (
        "import sys; sys.argv[1:] = ['--help']; from espalier.app.entry_point import entry; entry()",
        "from espalier.app.command_line import command_of; command_of(['--help'])()",
    ),
}


def main() -> None:
    """Measure and print."""
    print(f"{'':<18}{'CPU s':>8}{'with the collector':>20}{'share':>8}")
    for name, programs in PROGRAMS.items():
        for program in programs:
            cpu_seconds(program)  # compiles, and fills the disk's cache
        times = [[cpu_seconds(program) for program in programs] for _ in range(REPEATS)]
        own, collecting = map(median, zip(*times, strict=True))
        print(f"{name:<18}{own:>8.2f}{collecting:>20.2f}{own / collecting:>8.2f}")


def cpu_seconds(program: str) -> float:
    """Return the CPU seconds of a Python process from start to end."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", program], check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


if __name__ == "__main__":
    main()
