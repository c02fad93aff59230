"""Settings that were given and that a run has no use for."""

from collections.abc import Iterable

from espalier.app.config.decisions import no_edge_in_a_worker, why_not_recorded, why_not_stacked
from espalier.app.config.defaults import with_defaults
from espalier.app.config.keys import keys_tagged
from espalier.app.config.run_config import RunConfig
from espalier.app.features.table import FEATURES
from espalier.app.settings.section import Tag
from espalier.app.settings.sections import Plans, Split
from espalier.app.tasks.kinds import task_kind


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
    algorithm, data = config.algorithm, config.data
    name = f"algorithm = {algorithm.text!r}"
    keys = {kind.name: kind.own_keys() for kind in config.sections().values()}
    task = task_kind(data)
    if config.is_flat:
        if algorithm.strategy_key != "edge-strategy":
            yield ("edge-strategy",), f"{name} has no edges"
        if not task.grows:  # there slots pass by edge rounds
            yield ("edge-rounds",), f"{name} has no edges"
        if not config.rule:
            yield ("num-edges",), f"{name} has no edges"
    if not algorithm.splits:
        yield keys_tagged(Tag.CUTS), f"{name} cuts no model"
    if not algorithm.trains_clients:
        yield keys_tagged(Tag.TRAINS_CLIENTS), f"{name} trains no clients"
    yield from _execution_without_use(config)
    for feature in FEATURES:
        yield from feature.without_use(config)
    if config.engine != "ray":
        yield keys["ray"], f"engine = {config.engine!r}"
    if not task.counts_requests:
        yield keys["caching"], f"dataset = {data.dataset!r}"
        yield from _partitions_without_use(data.partition)
    else:
        yield keys_tagged(Tag.READS_DATA), "dataset = 'video-caching' is simulated"
    if config.train.optimizer != "sgd":
        yield ("train.momentum",), f"optimizer = {config.train.optimizer!r}"
    if config.federation.global_rounds == 1:
        yield ("train.schedule",), "global-rounds = 1"
    if not algorithm.has_model:
        yield keys_tagged(Tag.TRAINING), f"{name} trains nothing"


def _execution_without_use(config: RunConfig) -> Iterable[tuple[Iterable[str], str]]:
    """Yield what says how clients of one process train, where they can't train so."""
    algorithm, split = config.algorithm, config.split
    name = f"algorithm = {algorithm.text!r}"
    if why := why_not_stacked(config):
        yield ("stack",), why
    if why := why_not_recorded(config):
        yield ("train.cuda-graph",), why
    if config.engine == "flower" or split.transport == "stream":
        yield ("split.execution",), "clients and edges have processes of their own, or streams between them"
    elif config.has_clients_in_workers:
        yield ("split.execution",), no_edge_in_a_worker(config)
    elif algorithm.shares_server and not algorithm.in_turn(split):
        yield ("split.execution",), f"in {name} clients advance together, by messages"


def _partitions_without_use(partition: str) -> Iterable[tuple[Iterable[str], str]]:
    why = f"partition = {partition!r}"
    if not partition.startswith("dirichlet"):
        yield ("alpha",), why
    if partition == "own":
        yield ("data.min-samples",), why
    if partition != "shards":
        yield ("data.shards-per-client",), why
