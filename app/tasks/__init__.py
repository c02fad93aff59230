"""Model and data of a run: the built-in tasks, and `OwnTask`, the base of a user's own (``docs/own-task.md``).

What is exported here is imported when it is first asked for, so that data can be read without Flower.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from espalier.app.tasks.own import OwnTask, Pool
    from espalier.app.tasks.tokens import token_loss
    from espalier.clients.cutting.blocks import blocks_of
    from espalier.clients.task import Examples
    from espalier.clients.whole.frozen import without_frozen

__all__ = ["Examples", "OwnTask", "Pool", "blocks_of", "token_loss", "without_frozen"]

_MODULES = {
    "Examples": "espalier.clients.task",
    "OwnTask": "espalier.app.tasks.own",
    "Pool": "espalier.app.tasks.own",
    "blocks_of": "espalier.clients.cutting.blocks",
    "token_loss": "espalier.app.tasks.tokens",
    "without_frozen": "espalier.clients.whole.frozen",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)
