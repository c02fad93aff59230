"""Memory management for long runs of many small steps."""

import ctypes
import gc
import sys

KEEP_BYTES = 2**30
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # malloc.h


def keep_memory() -> None:
    """Keep what is there, and what will be freed, for the steps to come; call it before training starts.

    Python's collector need not look through all imported modules again and again. The GNU C library, where it is the
    one, keeps freed tensors instead of giving them back to the system and taking them page by page again: 700 page
    faults, some 6% of the time, in a split step of `cnn`.
    """
    gc.collect()
    gc.freeze()
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:  # another C library than GNU's may have none
        mallopt(M_MMAP_THRESHOLD, KEEP_BYTES)
        mallopt(M_TRIM_THRESHOLD, KEEP_BYTES)
