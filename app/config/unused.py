"""Settings that were given and that a run has no use for."""

from collections.abc import Iterable

from espalier.app.algorithms.registry import ALGORITHMS
from espalier.app.config.defaults import with_defaults
from espalier.app.config.keys import keys_tagged
from espalier.app.config.run_config import RunConfig
from espalier.app.features.table import FEATURES
from espalier.app.settings.section import Tag
from espalier.app.settings.sections import Plans, Split


def unused_keys(config: RunConfig) -> dict[str, str]:
    """Return the keys whose values are not the defaults and that the run has no use for, each with the reason."""
    # Some defaults depend on other settings, so they are worked out for this config with those keys left open.
    plan, split = Plans(selection=config.plan.selection), Split()
    left_open = with_defaults(config.model_copy(update={"plan": plan, "split": split}))
    defaults = RunConfig().as_dict() | left_open.plan.as_dict() | left_open.split.as_dict()
    given = config.as_dict()
    reasons: dict[str, str] = {}
    for keys, reason in _without_use(config):
        for key in keys:
            if given[key] != defaults[key]:
                reasons.setdefault(key, reason)
    return reasons


def _without_use(config: RunConfig) -> Iterable[tuple[Iterable[str], str]]:
    """Yield keys, and why the run has no use for them."""
    name = f"algorithm = {config.algorithm.text!r}"
    for tag, has_use, lacks in (
        (Tag.CUTS, config.algorithm.splits, "cuts no model"),
        (Tag.TUNES, config.algorithm.fine_tunes, "fine-tunes no models"),
        (Tag.TRAINS_CLIENTS, config.algorithm.trains_clients, "trains no clients"),
        (Tag.TRAINING, config.algorithm.has_model, "trains nothing"),
    ):
        if not has_use:
            yield keys_tagged(tag), f"{name} {lacks}"
    for other in ALGORITHMS.values():
        if other.section and other.section is not config.algorithm.section:
            owners = [repr(own.name) for own in ALGORITHMS.values() if own.section is other.section]
            yield other.section.own_keys(), f"it is for algorithm = {' and '.join(owners)}"
    if config.of_algorithm:
        yield from config.of_algorithm.without_use(config.as_dict())
    for feature in FEATURES:
        yield from feature.without_use(config)
