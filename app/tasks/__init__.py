"""Model and data of a run: the built-in tasks, and `OwnTask`, the base of a user's own (``docs/own-task.md``).

What is exported here is imported when it is first asked for, so that data can be read without Flower.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from espalier.app.tasks.own import OwnTask
    from espalier.clients.task import Examples

__all__ = ["Examples", "OwnTask"]


def __getattr__(name: str) -> Any:
    if name == "Examples":
        from espalier.clients.task import Examples

        return Examples
    if name == "OwnTask":
        from espalier.app.tasks.own import OwnTask

        return OwnTask
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
