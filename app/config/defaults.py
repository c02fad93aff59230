"""Defaults that depend on other settings. A parsed config holds the values that they work out to."""

from collections.abc import Callable, Mapping
from typing import Any

from espalier.app.config.keys import keys_tagged
from espalier.app.config.run_config import RunConfig
from espalier.app.ground.errors import UserError
from espalier.app.settings.section import Tag
from espalier.app.tasks.kinds import task_kind

# The RawHFL paper's setting.
CACHING_BATCHES_PER_EPOCH = 10


def with_defaults(config: RunConfig) -> RunConfig:
    """Return a config in which settings that were left open have a value.

    ``plan.selected-per-edge = 0`` is half of the clients of a cell, ``plan.max-local-rounds = 0`` is ``local-epochs``:
    a planned run trains some of the clients, and them as much as a run without plans. ``split.label-policy = "auto"``
    sends labels where the data grow, else indices. Where data grow, a planned local round has a fixed number of
    mini-batches. The server's blocks train as the clients do.
    """
    sections: dict[str, Any] = {"split": config.split.beside(config.train)}
    grows = task_kind(config.data).grows
    if config.rule:
        plan, smallest = config.plan, config.federation.num_clients // max(config.cells, 1)
        sections["plan"] = plan.model_copy(
            update={
                "selected_per_edge": plan.selected_per_edge or max(-(-smallest // 2), 1),
                "max_local_rounds": plan.max_local_rounds or config.train.local_epochs,
            }
        )
        if grows and not config.train.batches_per_epoch:
            sections["train"] = config.train.model_copy(update={"batches_per_epoch": CACHING_BATCHES_PER_EPOCH})
    if config.split.label_policy == "auto":
        policy = "labels" if grows else "indices"
        sections["split"] = sections["split"].model_copy(update={"label_policy": policy})
    return config.model_copy(update=sections)


def without_defaults(values: Mapping[str, Any], parse: Callable[[Mapping[str, Any]], RunConfig]) -> dict[str, Any]:
    """Return settings in which those are open again that have the value to which `with_defaults` would bring them.

    Parameters
    ----------
    values : Mapping[str, Any]
        All settings of a run, by key.
    parse : Callable
        `espalier.app.config.parse.parse_saved`.
    """
    plain, left_open = RunConfig().as_dict(), dict(values)
    for key in sorted(keys_tagged(Tag.LEFT_OPEN)):
        try:
            comes_to = parse({**values, key: plain[key]}).as_dict()[key]
        except UserError:
            continue
        if comes_to == values[key]:
            left_open[key] = plain[key]
    return left_open
