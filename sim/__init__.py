"""The simulated world: the in-process runtime, cells and radio channel, devices, content requests.

`InProcessGrid` is imported when it is first asked for, so that the world's other modules need NumPy only.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .in_process_grid import InProcessGrid

__all__ = ["InProcessGrid"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.in_process_grid"), name)
