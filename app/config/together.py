"""What does not go together: values that are fine alone."""

from espalier.app.config.keys import keys_tagged
from espalier.app.config.run_config import RunConfig
from espalier.app.features.table import FEATURES
from espalier.app.ground.errors import bad_value
from espalier.app.ground.reasons import first_reason
from espalier.app.settings.section import Tag
from espalier.app.settings.values import path_of


def check_together(config: RunConfig) -> None:
    """Refuse values that are fine alone and impossible together."""
    values = config.as_dict()
    paths = {key: path_of(key, values[key]) for key in sorted(keys_tagged(Tag.PATH))}
    for spec in (config.federation.cloud_strategy, config.federation.edge_strategy):
        if not spec.module:
            spec.check()
    if config.resume and config.output_dir and paths["output-dir"] != paths["resume"]:
        allowed = f"'' or {config.resume!r}: a resumed run goes on in its folder"
        raise bad_value("output-dir", config.output_dir, allowed)
    for feature in FEATURES:
        feature.check(config)
    _check_moves(config)


def check_strategies(config: RunConfig) -> None:
    """Refuse strategies that can't be made, or that would not do in this run what they are.

    It imports strategies of other packages, which clients need not have: servers call it, before anything else.

    Raises
    ------
    UserError
        For one that is not a strategy, or does not go with the algorithm or with other settings.
    """
    for feature in FEATURES:
        feature.check_strategies(config)


def falling_short(config: RunConfig) -> dict[str, str]:
    """Return the keys of settings that can do less in this run than they say, with the reasons.

    Like `check_strategies`, which comes first, it is for servers.
    """
    return {key: why for feature in FEATURES for key, why in feature.falls_short(config).items()}


def _check_moves(config: RunConfig) -> None:
    """Refuse clients that move between edges where there are none, where they are others' or in different rounds."""
    movers = config.movers
    if not movers:
        return
    (key, still), *others = movers.items()
    why_not = next(filter(None, (feature.check_moves(config) for feature in FEATURES)), "")
    why = first_reason(
        (config.is_flat, f"{config.algorithm.name} without edges"),
        *((True, f"{other} = {config.as_dict()[other]}, by which clients move") for other, _ in others),
        (not config.here.is_whole, f"deploy.role = {config.deploy.role!r}: each host has its own clients"),
        (config.out_of_step, f"{config.out_of_step}, where edges are in different rounds"),
        (why_not, why_not),
    )
    if why:
        raise bad_value(key, config.as_dict()[key], f"{still} for {why}")
