"""A run of a sweep, in a process of its own: ``python -m espalier.app.sweeps.child CORES KEY=VALUE ...``.

Its standard input is a pipe from the sweep. When that ends, because the sweep closes it or is gone itself, whatever
ended it, the run is interrupted as by Ctrl-C.
"""

import os
import signal
import sys
from collections.abc import Sequence
from threading import Thread

from espalier.app.command_line import main


def interrupted_with(pipe: int) -> None:
    """Let this process be interrupted when a pipe ends."""
    # A sweep in the background of a shell has children that ignore interrupts.
    signal.signal(signal.SIGINT, signal.default_int_handler)

    def wait() -> None:
        os.read(pipe, 1)  # not sys.stdin, which Python can't close at its end while somebody reads
        os.kill(os.getpid(), signal.SIGINT)

    Thread(target=wait, daemon=True).start()


def run(arguments: Sequence[str]) -> int:
    """Make one run, on the cores that the first argument says, and return its exit code."""
    interrupted_with(sys.stdin.fileno())
    cores, *given = arguments
    return main(given, int(cores))


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
