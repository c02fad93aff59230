"""Run a SuperLink that ends when it can start no more runs, so that a supervisor starts it again.

``python deploy/superlink.py [OPTIONS OF flower-superlink]``. Flower's own command goes on without the program that
starts its runs, and the next run waits for ever: see `superexec`.
"""

import sys
from importlib.metadata import entry_points

from superexec import end_without_it

NAME = "flower-superlink"

if __name__ == "__main__":
    sys.argv[0] = NAME
    (found,) = entry_points(group="console_scripts", name=NAME)
    end_without_it(NAME)
    found.load()()
