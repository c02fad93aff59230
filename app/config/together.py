"""What does not go together: values that are fine alone."""

from pathlib import Path

from flwr.serverapp.strategy import FedProx

from espalier.app.config.sections import (
    DEVICE_RANGES,
    FLAT_ALGORITHMS,
    ONE_CUT_ALGORITHMS,
    OWN,
    PLANNED_ALGORITHMS,
    VIDEO_CACHING,
    RadioWorld,
    RunConfig,
)
from espalier.app.config.values import BEST_CUT, CLASSES_ALLOWED, channels_allowed
from espalier.app.errors import bad_value
from espalier.strategies.allocation import SOLVERS

PATH_KEYS = (
    "data-dir",
    "data.cache-dir",
    "output-dir",
    "resume",
    "deploy.edge-folder",
    "stream.certificate",
    "stream.key",
)


def check_together(config: RunConfig) -> None:
    """Refuse values that are fine alone and impossible together."""
    for key in PATH_KEYS:
        try:
            Path(config.as_dict()[key]).expanduser()
        except RuntimeError:
            raise bad_value(key, config.as_dict()[key], "a path; there is no home folder of that user") from None
    for spec in (config.federation.cloud_strategy, config.federation.edge_strategy):
        if not spec.module:
            spec.check()
    resumed, output = (Path(folder).expanduser().absolute() for folder in (config.resume, config.output_dir))
    if config.resume and config.output_dir and output != resumed:
        allowed = f"'' or {config.resume!r}: a resumed run goes on in its folder"
        raise bad_value("output-dir", config.output_dir, allowed)
    _refuse_unused_strategies(config)
    _check_weighting(config)
    if config.is_split:
        cuts = config.split.cut_layer
        if config.algorithm in ONE_CUT_ALGORITHMS and len(set(cuts.numbers)) > 1:
            allowed = f"one cut for all clients where algorithm = {config.algorithm!r}: they share the server's block"
            raise bad_value("cut-layer", cuts.text, allowed)
        if config.data.dataset == VIDEO_CACHING and config.split.label_policy == "indices":
            allowed = "'labels' for dataset = 'video-caching': labels that are not there yet can't be registered"
            raise bad_value("split.label-policy", "indices", allowed)
    chooses = config.is_split and config.algorithm not in ONE_CUT_ALGORITHMS and config.is_planned
    if config.split.cut_layer.is_best and not chooses:
        allowed = "numbers; with selection = 'resource-aware' the plans of sfl-v1, hsfl and phsfl choose"
        raise bad_value("cut-layer", BEST_CUT, allowed)
    if config.data.dataset == VIDEO_CACHING:
        if config.data.model != "auto":
            raise bad_value(
                "model", config.data.model, "'auto' for dataset = 'video-caching', which has a network of its own"
            )
    elif config.algorithm == "top-popular":
        raise bad_value("algorithm", config.algorithm, "another one, or dataset = 'video-caching'")
    if config.algorithm in ("centralised", "top-popular") and config.plan.selection != "everybody":
        raise bad_value("selection", config.plan.selection, f"'everybody': {config.algorithm} trains no clients")
    if config.is_planned:
        _check_selection(config)
    if config.plan.resources == "measured" and not config.is_planned:
        allowed = "'simulated', or selection = 'resource-aware', or an algorithm that plans, such as 'rawhfl'"
        raise bad_value("plan.resources", config.plan.resources, allowed)
    if config.edges > config.federation.num_clients:
        raise bad_value("num-edges", config.edges, f"at most num-clients = {config.federation.num_clients}")
    _check_role(config)
    if bool(config.stream.certificate) != bool(config.stream.key):
        given = "stream.key" if config.stream.key else "stream.certificate"
        raise bad_value(given, config.as_dict()[given], "both stream.certificate and stream.key, or neither")
    _check_own_folders(config)
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
    has_cloud, has_edges = config.deploy.role != "edge", config.deploy.role != "cloud"
    for spec in [config.federation.cloud_strategy] * has_cloud + [config.federation.edge_strategy] * has_edges:
        spec.check()
    if has_cloud and config.is_split and issubclass(config.federation.cloud_strategy.kind, FedProx):
        allowed = "another strategy: the proximal term is for clients that have the whole model"
        raise bad_value("cloud-strategy", config.federation.cloud_strategy.text, allowed)
    samples = config.federation.cloud_strategy if config.algorithm == "fedavg" else config.federation.edge_strategy
    if (
        has_edges
        and config.federation.participation < 1
        and not config.is_split
        and not samples.takes("fraction_train")
    ):
        allowed = f"1.0: {samples.name} has no fraction_train"
        raise bad_value("participation", config.federation.participation, allowed)


def _refuse_unused_strategies(config: RunConfig) -> None:
    """Refuse strategies that an algorithm has no use for; a flat one just has no edges."""
    given_edge = not config.is_flat and config.federation.edge_strategy.text != "FedAvg"
    if config.algorithm in PLANNED_ALGORITHMS and given_edge:
        allowed = f"'FedAvg': the edges of {config.algorithm} add up gradients; other strategies go with h-fedavg"
        raise bad_value("edge-strategy", config.federation.edge_strategy.text, allowed)
    if config.is_split and given_edge:
        allowed = f"'FedAvg': {config.algorithm} says how edges train; other strategies go with h-fedavg"
        raise bad_value("edge-strategy", config.federation.edge_strategy.text, allowed)
    if config.is_flat and config.algorithm != "fedavg" and config.federation.cloud_strategy.text != "FedAvg":
        edges = ", or num-edges = 2 or more" if config.is_split else ""
        allowed = f"'FedAvg': {config.algorithm} without edges has nothing for it to aggregate{edges}"
        raise bad_value("cloud-strategy", config.federation.cloud_strategy.text, allowed)


def _check_weighting(config: RunConfig) -> None:
    """Refuse equal weights where they are so anyway, or where nothing is averaged."""
    if config.train.weighting == "examples":
        return
    why = ""
    if config.algorithm in PLANNED_ALGORITHMS:
        why = f"{config.algorithm} weighs all of its clients and edges equally by itself"
    elif config.algorithm in ("centralised", "top-popular") or (config.algorithm == "sl" and config.is_flat):
        why = f"{config.algorithm} averages no models" + ", unless num-edges = 2 or more" * config.is_split
    if why:
        raise bad_value("train.weighting", config.train.weighting, f"'examples': {why}")


def _check_own_folders(config: RunConfig) -> None:
    """Refuse what does not go together with folders of the clients' own, or is for them only."""
    if config.data.partition != OWN:
        for key in ("data.classes", "data.pixel-mean", "data.pixel-std"):
            if value := config.as_dict()[key]:
                raise bad_value(
                    key, value, f"'' for partition = {config.data.partition!r}, whose data set says it itself"
                )
        return
    if config.data.dataset != "image-folder":
        allowed = f"another one for dataset = {config.data.dataset!r}: clients' own folders are for 'image-folder'"
        raise bad_value("partition", OWN, allowed)
    if config.algorithm == "centralised":
        allowed = f"one that trains clients for partition = {OWN!r}: nobody has all the data"
        raise bad_value("algorithm", config.algorithm, allowed)
    if not config.data.image_size:
        raise bad_value("data.image-size", 0, f"1 or more for partition = {OWN!r}: all clients' images get one size")
    for key, given, allowed in (
        ("data.classes", config.data.classes.text, CLASSES_ALLOWED),
        ("data.pixel-mean", config.data.pixel_mean.text, channels_allowed(0.0)),
        ("data.pixel-std", config.data.pixel_std.text, channels_allowed(1e-6)),
    ):
        if not given:
            raise bad_value(key, "", allowed)


def _check_role(config: RunConfig) -> None:
    """Refuse a role that its other settings do not suit."""
    if config.deploy.role != "edge":
        for key in ("deploy.edge-name", "deploy.edge-folder", "deploy.edge-clients"):
            if value := config.as_dict()[key]:
                raise bad_value(
                    key, value, f"nothing for deploy.role = {config.deploy.role!r}: it is for deploy.role = 'edge'"
                )
    if config.deploy.role == "server":
        return
    if config.is_flat or config.algorithm in FLAT_ALGORITHMS:
        raise bad_value("algorithm", config.algorithm, f"one with two tiers for deploy.role = {config.deploy.role!r}")
    if config.engine != "flower":
        allowed = f"'flower' for deploy.role = {config.deploy.role!r}: type: flwr run . --run-config 'deploy.role=...'"
        raise bad_value("engine", config.engine, allowed)
    if config.deploy.role == "edge":
        for key, allowed in (
            ("deploy.edge-name", "the name of this edge"),
            ("deploy.edge-folder", "a private folder that this run shares with the gateway"),
            ("deploy.edge-clients", "the number of this edge's clients"),
        ):
            if not config.as_dict()[key]:
                raise bad_value(key, config.as_dict()[key], f"{allowed} for deploy.role = 'edge'")
        if config.resume:
            raise bad_value("resume", config.resume, "'' for deploy.role = 'edge': the cloud's run is resumed")


def _check_selection(config: RunConfig) -> None:
    """Refuse what does not go together with plans, or with cells of this size."""
    if config.plan.solver not in SOLVERS or config.plan.solver in PLANNED_ALGORITHMS:
        names = [name for name in SOLVERS if name not in PLANNED_ALGORITHMS]
        raise bad_value("plan.solver", config.plan.solver, ", ".join(names))
    if config.federation.participation != 1.0:
        raise bad_value(
            "participation", config.federation.participation, "1.0: plans select the clients (plan.selected-per-edge)"
        )
    if config.algorithm == "sl" or (config.algorithm == "sfl-v2" and config.split.server_order == "one-by-one"):
        raise bad_value("selection", config.plan.selection, "'everybody' where clients train one after the other")
    if config.is_split and config.plan.solver == "sca":
        raise bad_value("plan.solver", "sca", "'exact' or 'random' for split training: its uploads grow with rounds")
    if config.is_split and len(set(config.split.cut_layer.numbers)) > 1:
        raise bad_value(
            "cut-layer", config.split.cut_layer.text, "one cut, or 'best', with selection = 'resource-aware'"
        )
    if config.data.dataset == VIDEO_CACHING and not config.train.batches_per_epoch:
        raise bad_value("batches-per-epoch", 0, "1 or more for plans on dataset = 'video-caching', whose data grow")
    if config.cells > config.federation.num_clients:
        raise bad_value("num-edges", config.cells, f"at most num-clients = {config.federation.num_clients}")
    check_cell_size(config, config.federation.num_clients // config.cells)
    _check_devices(config)


def _check_devices(config: RunConfig) -> None:
    """Refuse simulated devices that can't be, and such where devices tell what they are."""
    if config.plan.resources == "measured":
        for name in DEVICE_RANGES:
            default = getattr(RadioWorld(), name)
            if (given := getattr(config.radio, name)) != default:
                allowed = f"{default.text!r} for plan.resources = 'measured': devices say it, each in its node's config"
                raise bad_value(RadioWorld.keys()[name], given.text, allowed)
        return
    lowest = config.radio.device_ranges["max_frequency_hz"][0]
    if config.plan.min_frequency_hz > lowest:
        allowed = (
            f"0 to {lowest:g}, the least that radio.max-frequency-hz = {config.radio.max_frequency_hz.text!r} allows"
        )
        raise bad_value("plan.min-frequency-hz", config.plan.min_frequency_hz, allowed)


def check_cell_size(config: RunConfig, smallest: int) -> None:
    """Refuse a number of clients to select, or an overlap, that a cell of this size can't have."""
    if config.algorithm in PLANNED_ALGORITHMS and config.algorithm != "rawhfl":
        return  # their rules don't select a number of clients
    z = config.plan.selected_per_edge
    if z > smallest:
        raise bad_value("plan.selected-per-edge", z, f"1 to {smallest}, the clients of the smallest cell")
    least = max(0, 2 * z - smallest)
    if 0 <= config.plan.max_overlap < least:
        why = f"with {z} of {smallest} clients selected in every round"
        raise bad_value("plan.max-overlap", config.plan.max_overlap, f"at least {least} {why}, or -1 for half of them")
