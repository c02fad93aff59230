"""Programs that tests start can be interrupted, wherever the tests themselves run."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def interruptible() -> Iterator[None]:
    """Let programs that are started inside the block take SIGINT, as those of a terminal do.

    A shell starts its background jobs with SIGINT ignored, and what a process ignores its children ignore too.
    """
    before = signal.getsignal(signal.SIGINT)
    if before is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
