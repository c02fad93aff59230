"""What does not go together: values that are fine alone."""

from flwr.serverapp.strategy import (
    DifferentialPrivacyClientSideAdaptiveClipping,
    DifferentialPrivacyClientSideFixedClipping,
)

from espalier.app.algorithms.algorithm import Algorithm
from espalier.app.algorithms.registry import ALGORITHMS
from espalier.app.config.keys import keys_tagged
from espalier.app.config.run_config import RunConfig
from espalier.app.features.table import FEATURES
from espalier.app.ground.errors import bad_value
from espalier.app.settings.section import Tag
from espalier.app.settings.sections import OWN, Data, Federation, Train
from espalier.app.settings.values import CLASSES_ALLOWED, channels_allowed, path_of
from espalier.app.tasks.kinds import task_kind
from espalier.strategies.edges import replies_needed

CLIPPED_BY_CLIENTS = (DifferentialPrivacyClientSideAdaptiveClipping, DifferentialPrivacyClientSideFixedClipping)


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
    _check_own_task(config.data)
    _refuse_unused_strategies(config.algorithm, config.federation, is_flat=config.is_flat)
    _check_weighting(config.algorithm, config.train, is_flat=config.is_flat)
    _check_schedule(config.algorithm, config.train)
    task = task_kind(config.data)
    if task.has_own_model and config.data.model != "auto":
        raise bad_value("model", config.data.model, f"'auto' for {config.data.source}, which has a model of its own")
    if config.data.validation_share and task.grows:
        allowed = f"0.0 for {config.data.source}, whose clients get more data from round to round"
        raise bad_value("data.validation-share", config.data.validation_share, allowed)
    algorithm = config.algorithm
    if algorithm.ranks_requests and not task.counts_requests:
        raise bad_value("algorithm", algorithm.text, "another algorithm, or dataset = 'video-caching'")
    if config.edges > config.federation.num_clients:
        raise bad_value("num-edges", config.edges, f"at most num-clients = {config.federation.num_clients}")
    for feature in FEATURES:
        feature.check(config)
    _check_moves(config)
    _check_own_folders(config.algorithm, config.data)
    if config.data.dataset == "image-folder" and not config.data.data_dir:
        raise bad_value("data-dir", "", "a folder with train/<class>/* and test/<class>/* for dataset = 'image-folder'")


def check_strategies(config: RunConfig) -> None:
    """Refuse strategies that can't be made, or that would not do in this run what they are.

    It imports strategies of other packages, which clients need not have: servers call it, before anything else.

    Raises
    ------
    UserError
        For one that is not a strategy, or does not go with the algorithm or with `participation`.
    """
    specs = config.strategies_here
    for spec in specs:
        spec.check()
        if spec.has_any(CLIPPED_BY_CLIENTS):
            allowed = "one that clips at the server: this app's clients do not clip"
            raise bad_value(spec.key, spec.text, allowed)
    samples_clients = config.algorithm.strategy_key and not config.algorithm.splits
    if samples_clients and config.deploy.role != "cloud" and config.federation.participation < 1:
        by_key = {spec.key: spec for spec in (config.federation.cloud_strategy, config.federation.edge_strategy)}
        samples = by_key[config.algorithm.strategy_key]
        if not samples.takes("fraction_train"):
            allowed = f"1.0: {samples.name} has no fraction_train"
            raise bad_value("participation", config.federation.participation, allowed)
    for feature in FEATURES:
        feature.check_strategies(config)
    if config.engine != "flower" and not config.out_of_step:
        _check_replies_of_all(config.federation, config.edges, is_flat=config.is_flat)


def _check_replies_of_all(own: Federation, edges: int, *, is_flat: bool) -> None:
    """Refuse a strategy that makes no model of all replies there can be, where no node says which edge it is under."""
    if is_flat:
        levels = [(own.cloud_strategy, own.num_clients, "clients")]
    else:
        levels = [
            (own.cloud_strategy, edges, "edges"),
            (own.edge_strategy, own.num_clients // edges, "clients of an edge"),
        ]
    for spec, replies, senders in levels:
        if (needed := replies_needed(spec.build({}))) > replies:
            why = f"{spec.name} needs the replies of {needed}, there are {replies}"
            raise bad_value(spec.key, spec.text, f"another strategy, or more {senders}: {why}")


def _refuse_unused_strategies(algorithm: Algorithm, federation: Federation, *, is_flat: bool) -> None:
    """Refuse strategies that an algorithm has no use for; one without edges just has none."""
    cloud, edge = federation.cloud_strategy, federation.edge_strategy
    if not is_flat and algorithm.strategy_key != edge.key and edge.text != "FedAvg":
        others = ", ".join(name for name, other in ALGORITHMS.items() if other.strategy_key == edge.key)
        allowed = f"'FedAvg': {algorithm.name} decides how edges train; other strategies are for {others}"
        raise bad_value(edge.key, edge.text, allowed)
    if is_flat and algorithm.strategy_key != cloud.key and cloud.text != "FedAvg":
        edges = ", or num-edges = 2 or more" if algorithm.tiers == "one or two" else ""
        allowed = f"'FedAvg': {algorithm.name} without edges averages nothing{edges}"
        raise bad_value(cloud.key, cloud.text, allowed)


def _check_weighting(algorithm: Algorithm, train: Train, *, is_flat: bool) -> None:
    """Refuse equal weights where they are so anyway, or where nothing is averaged."""
    why = ""
    if train.weighting == "examples":
        return
    if algorithm.adds_gradients:
        why = f"{algorithm.name} weighs all of its clients and edges equally by itself"
    elif not algorithm.averages and is_flat:
        edges = ", unless num-edges = 2 or more" if algorithm.tiers == "one or two" else ""
        why = f"{algorithm.name} averages no models{edges}"
    if why:
        raise bad_value("train.weighting", train.weighting, f"'examples': {why}")


def _check_schedule(algorithm: Algorithm, train: Train) -> None:
    """Refuse learning rates that change where steps are counted by one rate."""
    if train.schedule != "constant" and algorithm.adds_gradients:
        allowed = f"'constant' for {algorithm.name}, whose edges add up gradients"
        raise bad_value("train.schedule", train.schedule, allowed)


def _check_own_task(data: Data) -> None:
    """Refuse other settings of data and model beside a task of one's own."""
    if not data.task.text:
        return
    given, defaults, both = data.as_dict(), Data().as_dict(), Data.keys_tagged(Tag.WITH_OWN_TASK)
    for key in defaults:
        if key not in both and given[key] != defaults[key]:
            own = f"for {data.source}, which has data and a model of its own"
            raise bad_value(key, given[key], f"{defaults[key]!r}, the default, {own}")


def _check_own_folders(algorithm: Algorithm, data: Data) -> None:
    """Refuse what does not go together with folders of the clients' own, or is for them only."""
    if data.partition != OWN:
        values = data.as_dict()
        for key in data.keys_tagged(Tag.OF_OWN_FOLDERS):
            if value := values[key]:
                allowed = f"'' for partition = {data.partition!r}, where the data set decides it"
                raise bad_value(key, value, allowed)
        return
    if data.dataset != "image-folder":
        allowed = f"another one for dataset = {data.dataset!r}: clients' own folders are for 'image-folder'"
        raise bad_value("partition", OWN, allowed)
    if not algorithm.trains_clients:
        allowed = f"one that trains clients for partition = {OWN!r}: nobody has all the data"
        raise bad_value("algorithm", algorithm.text, allowed)
    if not data.image_size:
        raise bad_value("data.image-size", 0, f"1 or more for partition = {OWN!r}: all clients' images get one size")
    for key, given, allowed in (
        ("data.classes", data.classes.text, CLASSES_ALLOWED),
        ("data.pixel-mean", data.pixel_mean.text, channels_allowed(0.0)),
        ("data.pixel-std", data.pixel_std.text, channels_allowed(1e-6)),
    ):
        if not given:
            raise bad_value(key, "", allowed)


def _check_moves(config: RunConfig) -> None:
    """Refuse clients that move between edges where there are none, where they are others' or in different rounds."""
    movers = config.movers
    if not movers:
        return
    (key, still), why = next(iter(movers.items())), ""
    if config.is_flat:
        why = f"{config.algorithm.name} without edges"
    elif others := list(movers)[1:]:
        why = f"{others[0]} = {config.as_dict()[others[0]]}, by which clients move"
    elif config.deploy.role != "server":
        why = f"deploy.role = {config.deploy.role!r}: each host has its own clients"
    elif config.out_of_step:
        why = f"{config.out_of_step}, where edges are in different rounds"
    else:
        why = next(filter(None, (feature.check_moves(config) for feature in FEATURES)), "")
    if why:
        raise bad_value(key, config.as_dict()[key], f"{still} for {why}")
