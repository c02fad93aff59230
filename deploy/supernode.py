"""Run a SuperNode that ends when it is done, so that a supervisor starts it again, and starts again where it must.

``python deploy/supernode.py [OPTIONS OF flower-supernode]``. Flower's own command gives up when a TLS handshake takes
30 s, as where the SuperLink's host hangs. After that its process stays, connected to nothing, until somebody ends it.
So it does where the program is gone that starts its apps (see `superexec`).

Where a run ends between a message and the objects that belong to it, Flower's command keeps the message, waits for its
objects for up to 83 minutes, and then answers each later message with the reply to the one before. So this one starts
again, in the same process, as soon as Flower logs that it ignores such a message.

It knows that by three lines of Flower's log alone: "Receiving: ", "Sending: " and "Run ID ... is not in `RUNNING`
status. Ignoring message ...". Flower 1.41, 1.42 and 1.43 write all three. 1.43 writes the last one also where it drops
a reply, behind "Sending: ", which is no reason to start again: 1.41 and 1.42 have "Ignoring reply message" there.
"""

import logging
import os
import sys
import traceback
from collections.abc import Callable
from importlib.metadata import entry_points

from superexec import end_children, end_without_it

NAME = "flower-supernode"
RECEIVING, SENDING = "Receiving: ", "Sending: "
IGNORED = "is not in `RUNNING` status. Ignoring message"


class MessageIgnored(BaseException):
    """A run has ended in the middle of a message; not an Exception, since Flower goes on after these."""


class UntilIgnored(logging.Handler):
    """Ends a command that logs that it ignores a message which it receives; one that it sends is gone in order."""

    def __init__(self) -> None:
        super().__init__()
        self._sends = False

    def emit(self, record: logging.LogRecord) -> None:
        """Raise `MessageIgnored` for such a line."""
        line = record.getMessage()
        if line.startswith((RECEIVING, SENDING)):
            self._sends = line.startswith(SENDING)
        elif IGNORED in line and not self._sends:
            raise MessageIgnored


def run_to_the_end(command: Callable[[], object], start_again: Callable[[], object]) -> None:
    """Run a command and end this process with it, whatever threads it leaves; with status 1, since none is expected.

    Where a run ends in the middle of a message, `start_again` is called, which does not return.
    """
    logging.getLogger("flwr").addHandler(UntilIgnored())
    try:
        command()
    except SystemExit:  # its own end, in order
        raise
    except MessageIgnored:
        print(f"{NAME} starts again: a run ended in the middle of a message", file=sys.stderr, flush=True)
        start_again()
    except BaseException:
        traceback.print_exc()
    print(f"{NAME} is over", file=sys.stderr, flush=True)
    os._exit(1)


def start_this_again() -> None:
    """Put this program, newly started, in this process's place; what it has started ends."""
    end_children()
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


if __name__ == "__main__":
    sys.argv[0] = NAME
    (found,) = entry_points(group="console_scripts", name=NAME)
    end_without_it(NAME)
    run_to_the_end(found.load(), start_this_again)
