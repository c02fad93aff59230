"""Imports where a process starts."""

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uncollected() -> Iterator[None]:
    """Import without the garbage collector: modules are no garbage, and it would look through all of them many times.

    In a process that has just begun it leaves them out later, too, and when the process ends. One that has PyTorch
    already may hold models, which must not be kept for ever.
    """
    was_enabled, has_begun = gc.isenabled(), "torch" in sys.modules
    gc.disable()
    try:
        yield
        if not has_begun:
            gc.freeze()
    finally:
        if was_enabled:
            gc.enable()
