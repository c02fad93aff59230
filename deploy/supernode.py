"""Run a SuperNode that ends when it is done, so that a supervisor starts it again.

``python deploy/supernode.py [OPTIONS OF flower-supernode]``. Flower's own command gives up when a TLS handshake takes
30 s, as where the SuperLink's host hangs. After that its process stays, connected to nothing, until somebody ends it.
"""

import os
import sys
import traceback
from collections.abc import Callable
from importlib.metadata import entry_points

NAME = "flower-supernode"


def run_to_the_end(command: Callable[[], object]) -> None:
    """Run a command and end this process with it, whatever threads it leaves; with status 1, since none is expected."""
    try:
        command()
    except SystemExit:  # its own end, in order
        raise
    except BaseException:
        traceback.print_exc()
    print(f"{NAME} is over", file=sys.stderr, flush=True)
    os._exit(1)


if __name__ == "__main__":
    sys.argv[0] = NAME
    (found,) = entry_points(group="console_scripts", name=NAME)
    run_to_the_end(found.load())
