"""Imports where a process starts."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uncollected() -> Iterator[None]:
    """Import without the garbage collector: modules are no garbage, and it would look through all of them many times.

    It leaves them out later, too, and when the process ends. So a short command takes less time, and a device's
    process, which each message may start anew.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_enabled:
            gc.enable()
