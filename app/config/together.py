"""What does not go together: values that are fine alone."""

from math import ceil

from flwr.serverapp.strategy import (
    DifferentialPrivacyClientSideAdaptiveClipping,
    DifferentialPrivacyClientSideFixedClipping,
    FedProx,
)

from espalier.app.algorithms.registry import ALGORITHMS
from espalier.app.config.run_config import RunConfig
from espalier.app.ground.errors import bad_value
from espalier.app.ground.strategy_spec import StrategySpec
from espalier.app.planning.limits import check_cell_size
from espalier.app.planning.rule import PlanRule
from espalier.app.settings.sections import DEVICE_RANGES, OWN, SOLVERS, Data, RadioWorld
from espalier.app.settings.values import BEST_CUT, CLASSES_ALLOWED, PATH_KEYS, channels_allowed, path_of
from espalier.app.tasks.data import dataset_named
from espalier.app.tasks.kinds import task_kind
from espalier.app.tasks.models import model_named
from espalier.app.tasks.partition import SHARING_KEYS, scheme_named
from espalier.strategies.edges import replies_needed

CLIPPED_BY_CLIENTS = (DifferentialPrivacyClientSideAdaptiveClipping, DifferentialPrivacyClientSideFixedClipping)


def check_together(config: RunConfig) -> None:
    """Refuse values that are fine alone and impossible together."""
    values = config.as_dict()
    paths = {key: path_of(key, values[key]) for key in PATH_KEYS}
    for spec in (config.federation.cloud_strategy, config.federation.edge_strategy):
        if not spec.module:
            spec.check()
    if config.resume and config.output_dir and paths["output-dir"] != paths["resume"]:
        allowed = f"'' or {config.resume!r}: a resumed run goes on in its folder"
        raise bad_value("output-dir", config.output_dir, allowed)
    _check_own_task(config)
    _refuse_unused_strategies(config)
    _check_weighting(config)
    _check_schedule(config)
    task = task_kind(config.data)
    if config.algorithm.splits:
        cuts = config.split.cut_layer
        if config.algorithm.shares_server and len(set(cuts.numbers)) > 1:
            allowed = f"one cut for all clients: in {config.algorithm.name} they share the server's block"
            raise bad_value("cut-layer", cuts.text, allowed)
        if task.grows and config.split.label_policy == "indices":
            allowed = f"'labels' for {config.data.source}: labels of future data can't be registered"
            raise bad_value("split.label-policy", "indices", allowed)
    chooses = config.algorithm.splits and not config.algorithm.shares_server and config.rule
    if config.split.cut_layer.is_best and not chooses:
        allowed = "a number, or selection = 'resource-aware' and an algorithm with a server block for each client"
        raise bad_value("cut-layer", BEST_CUT, allowed)
    model_named(config.data.model)
    scheme_named(config.data.partition)
    if task.has_own_model and config.data.model.text != "auto":
        raise bad_value(
            "model", config.data.model.text, f"'auto' for {config.data.source}, which has a model of its own"
        )
    if config.data.validation_share and task.grows:
        allowed = f"0.0 for {config.data.source}, whose clients get more data from round to round"
        raise bad_value("data.validation-share", config.data.validation_share, allowed)
    algorithm = config.algorithm
    if algorithm.ranks_requests and not task.counts_requests:
        raise bad_value("algorithm", algorithm.text, "another algorithm, or dataset = 'video-caching'")
    if not algorithm.trains_clients and config.plan.selection != "everybody":
        raise bad_value("selection", config.plan.selection, f"'everybody': {algorithm.name} trains no clients")
    if config.rule:
        _check_plans(config, config.rule)
    if config.plan.resources == "measured" and not config.rule:
        allowed = "'simulated', or selection = 'resource-aware', or an algorithm with plans, such as 'rawhfl'"
        raise bad_value("plan.resources", config.plan.resources, allowed)
    guard = config.guard
    if guard.mode == "clip" and not (guard.update_norm or guard.activation_norm):
        raise bad_value("guard.mode", "clip", "'clip' with a bound, such as guard.update-norm = 10")
    if config.edges > config.federation.num_clients:
        raise bad_value("num-edges", config.edges, f"at most num-clients = {config.federation.num_clients}")
    _check_role(config)
    _check_asynchrony(config)
    _check_availability(config)
    _check_moves(config)
    if bool(config.stream.certificate) != bool(config.stream.key):
        given = "stream.key" if config.stream.key else "stream.certificate"
        raise bad_value(given, config.as_dict()[given], "both stream.certificate and stream.key, or neither")
    _check_own_folders(config)
    dataset = dataset_named(config.data.dataset)
    if dataset and dataset.is_folder and not config.data.data_dir:
        raise bad_value("data-dir", "", f"a folder with train/<class>/* and test/<class>/* for {config.data.source}")


def strategies_here(config: RunConfig) -> list[StrategySpec]:
    """Return the strategies that this process makes; those of other hosts need not be installed here."""
    role, federation = config.deploy.role, config.federation
    return [federation.cloud_strategy] * (role != "edge") + [federation.edge_strategy] * (role != "cloud")


def check_strategies(config: RunConfig) -> None:
    """Refuse strategies that can't be made, or that would not do in this run what they are.

    It imports strategies of other packages, which clients need not have: servers call it, before anything else.

    Raises
    ------
    UserError
        For one that is not a strategy, or does not go with the algorithm or with `participation`.
    """
    specs = strategies_here(config)
    for spec in specs:
        spec.check()
        if spec.has_any(CLIPPED_BY_CLIENTS):
            allowed = "one that clips at the server: this app's clients do not clip"
            raise bad_value(spec.key, spec.text, allowed)
    for spec in specs if config.algorithm.splits else ():
        if spec.has_any(FedProx):
            allowed = "another strategy: the proximal term is for clients that have the whole model"
            raise bad_value(spec.key, spec.text, allowed)
    samples_clients = config.algorithm.strategy_key and not config.algorithm.splits
    if samples_clients and config.deploy.role != "cloud" and config.federation.participation < 1:
        by_key = {spec.key: spec for spec in (config.federation.cloud_strategy, config.federation.edge_strategy)}
        samples = by_key[config.algorithm.strategy_key]
        if not samples.takes("fraction_train"):
            allowed = f"1.0: {samples.name} has no fraction_train"
            raise bad_value("participation", config.federation.participation, allowed)
    if config.deploy.role != "edge":
        _check_updates_at_a_time(config)
    if config.engine != "flower" and config.asynchrony.mode == "off":
        _check_replies_of_all(config)


def _check_updates_at_a_time(config: RunConfig) -> None:
    """Refuse a cloud strategy that makes no model of as few updates as come in at a time."""
    own, spec = config.asynchrony, config.federation.cloud_strategy
    nodes = config.federation.num_clients if config.is_flat else config.edges
    if own.tier == "edges":
        spec, nodes = config.federation.edge_strategy, config.federation.num_clients // config.edges
    needed = replies_needed(spec.build({})) if own.mode != "off" else 0
    why = f"{spec.name} makes no model of fewer updates"
    if own.mode == "fedasync" and needed > 1:
        raise bad_value("async.mode", own.mode, f"another one: {spec.text} needs {needed} updates at a time, not 1")
    if own.mode == "fedbuff" and needed > own.buffer_size_of(nodes):
        raise bad_value("async.buffer-size", own.buffer_size, f"{needed} or more: {why}")
    if own.mode == "semi-synchronous" and own.concurrency and needed > own.concurrency:
        raise bad_value("async.concurrency", own.concurrency, f"{needed} or more, or 0: {why}")


def _check_replies_of_all(config: RunConfig) -> None:
    """Refuse a strategy that makes no model of all replies there can be, where no node says which edge it is under."""
    own, edges = config.federation, config.edges
    if config.is_flat:
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


def _refuse_unused_strategies(config: RunConfig) -> None:
    """Refuse strategies that an algorithm has no use for; one without edges just has none."""
    algorithm, cloud, edge = config.algorithm, config.federation.cloud_strategy, config.federation.edge_strategy
    if not config.is_flat and algorithm.strategy_key != edge.key and edge.text != "FedAvg":
        others = ", ".join(name for name, other in ALGORITHMS.items() if other.strategy_key == edge.key)
        allowed = f"'FedAvg': {algorithm.name} decides how edges train; other strategies are for {others}"
        raise bad_value(edge.key, edge.text, allowed)
    if config.is_flat and algorithm.strategy_key != cloud.key and cloud.text != "FedAvg":
        edges = ", or num-edges = 2 or more" if algorithm.tiers == "one or two" else ""
        allowed = f"'FedAvg': {algorithm.name} without edges averages nothing{edges}"
        raise bad_value(cloud.key, cloud.text, allowed)


def _check_weighting(config: RunConfig) -> None:
    """Refuse equal weights where they are so anyway, or where nothing is averaged."""
    algorithm, why = config.algorithm, ""
    if config.train.weighting == "examples":
        return
    if algorithm.adds_gradients:
        why = f"{algorithm.name} weighs all of its clients and edges equally by itself"
    elif not algorithm.averages and config.is_flat:
        edges = ", unless num-edges = 2 or more" if algorithm.tiers == "one or two" else ""
        why = f"{algorithm.name} averages no models{edges}"
    if why:
        raise bad_value("train.weighting", config.train.weighting, f"'examples': {why}")


def _check_schedule(config: RunConfig) -> None:
    """Refuse learning rates that change where steps are counted by one rate, or where no round is everybody's."""
    given, why = config.train.schedule, ""
    if given == "constant":
        return
    if config.algorithm.adds_gradients:
        why = f"{config.algorithm.name}, whose edges add up gradients"
    elif config.asynchrony.mode != "off":
        why = f"async.mode = {config.asynchrony.mode!r}, where every edge, or client, is in a round of its own"
    if why:
        raise bad_value("train.schedule", given, f"'constant' for {why}")


def _check_own_task(config: RunConfig) -> None:
    """Refuse other settings of data and model beside a task of one's own; those of a pool it may have a use for."""
    if not config.data.task.text:
        return
    for key, value in Data().as_dict().items():
        if key not in ("task", "data.validation-share", *SHARING_KEYS) and (given := config.as_dict()[key]) != value:
            allowed = f"{value!r}, the default, for {config.data.source}, which has data and a model of its own"
            raise bad_value(key, given, allowed)


def _check_own_folders(config: RunConfig) -> None:
    """Refuse what does not go together with folders of the clients' own, or is for them only."""
    if config.data.partition.text != OWN:
        for key in ("data.classes", "data.pixel-mean", "data.pixel-std"):
            if value := config.as_dict()[key]:
                raise bad_value(
                    key, value, f"'' for partition = {config.data.partition.text!r}, where the data set decides it"
                )
        return
    dataset = dataset_named(config.data.dataset)
    if config.data.task.text or not (dataset and dataset.is_folder):
        allowed = f"another one for {config.data.source}: clients' own folders are for 'image-folder'"
        raise bad_value("partition", OWN, allowed)
    if not config.algorithm.trains_clients:
        allowed = f"one that trains clients for partition = {OWN!r}: nobody has all the data"
        raise bad_value("algorithm", config.algorithm.text, allowed)
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
                    key, value, f"no value for deploy.role = {config.deploy.role!r}: only deploy.role = 'edge' uses it"
                )
    if config.deploy.role == "server":
        return
    if config.is_flat:
        raise bad_value("algorithm", config.algorithm.text, f"one with two tiers for role {config.deploy.role!r}")
    if config.rule and config.rule.over_all_cells:
        allowed = (
            f"another one for deploy.role = {config.deploy.role!r}: its plans need the clients of all edges at once"
        )
        raise bad_value("algorithm", config.algorithm.text, allowed)
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


def _check_asynchrony(config: RunConfig) -> None:
    """Refuse asynchronous tiers where somebody has to be waited for, or nobody knows how long clients take."""
    own, algorithm = config.asynchrony, config.algorithm
    if own.mode == "off" or config.deploy.role == "edge":  # an edge waits for its own clients
        return
    _check_clock(config)
    if config.plan.resources == "measured":
        raise bad_value("async.mode", own.mode, "'off' for plan.resources = 'measured': the clock is simulated")
    nodes, unit = config.edges, "num-edges"
    if config.is_flat:
        nodes, unit = config.federation.num_clients, "num-clients"
        if algorithm.splits or algorithm.strategy_key != "cloud-strategy":
            allowed = f"'off' for {algorithm.name} without edges: 'fedavg' is flat, and edges of any algorithm will do"
            raise bad_value("async.mode", own.mode, allowed)
    if own.tier == "edges":
        nodes, unit = ceil(config.federation.num_clients / config.edges), "an edge's clients"
        _check_edges_can_be_asynchronous(config)
    if config.is_flat or own.tier == "edges":
        if config.rule:
            raise bad_value("selection", config.plan.selection, "'everybody' where single clients are not waited for")
        if config.federation.participation != 1.0:
            allowed = "1.0: async.concurrency says how many clients train at a time"
            raise bad_value("participation", config.federation.participation, allowed)
    if own.concurrency > nodes:
        raise bad_value("async.concurrency", own.concurrency, f"at most {unit} = {nodes}, or 0 for all")


def _check_edges_can_be_asynchronous(config: RunConfig) -> None:
    """Refuse edges that do not wait where there are none, where they are others', or do more than average models."""
    algorithm, why = config.algorithm, ""
    if config.is_flat:
        why = f"{algorithm.name} without edges"
    elif config.deploy.role != "server":
        why = f"deploy.role = {config.deploy.role!r}: edges have hosts of their own, where they wait for their clients"
    elif algorithm.splits or algorithm.rule or algorithm.strategy_key != "edge-strategy":
        why = f"{algorithm.name}: only edges of 'h-fedavg' can go on without clients"
    if why:
        raise bad_value("async.tier", config.asynchrony.tier, f"'cloud' for {why}")


def _check_availability(config: RunConfig) -> None:
    """Refuse clients that come and go by edge rounds where every edge, or client, is in a round of its own."""
    own, mode = config.availability, config.asynchrony.mode
    if own.mode == "trace" and not own.trace:
        allowed = "the path of a CSV file client,from,to, with availability.mode = 'trace'"
        raise bad_value("availability.trace", own.trace, allowed)
    if mode != "off" and config.deploy.role != "edge":
        why = f"async.mode = {mode!r}, where rounds are not everybody's"
        if own.mode != "always":
            raise bad_value("availability.mode", own.mode, f"'always' for {why}")
        if own.drop_out:
            raise bad_value("availability.drop-out", own.drop_out, f"0.0 for {why}")


def _check_moves(config: RunConfig) -> None:
    """Refuse clients that move between edges where there are none, where they are others' or in different rounds."""
    plan, movers = config.plan, config.movers
    if not movers:
        return
    (key, still), why = next(iter(movers.items())), ""
    if config.is_flat:
        why = f"{config.algorithm.name} without edges"
    elif others := list(movers)[1:]:
        why = f"{others[0]} = {config.as_dict()[others[0]]}, by which clients move"
    elif config.deploy.role != "server":
        why = f"deploy.role = {config.deploy.role!r}: each host has its own clients"
    elif config.asynchrony.mode != "off":
        why = f"async.mode = {config.asynchrony.mode!r}, where edges are in different rounds"
    elif config.rule and config.rule.selects_a_number and plan.battery_joules:
        why = f"plan.battery-joules = {plan.battery_joules}: an edge knows what a client spent there alone"
    elif config.rule and config.rule.selects_a_number and plan.value.text != "uniform":
        why = f"plan.value = {plan.value.text!r}: an edge knows what it has seen of a client alone"
    if why:
        raise bad_value(key, config.as_dict()[key], f"{still} for {why}")


def _check_clock(config: RunConfig) -> None:
    """Refuse a clock that does not show how long those take who train."""
    clock = config.asynchrony.clock
    if clock == "simulated" and config.deploy.role == "cloud":
        raise bad_value("async.clock", clock, "'auto' or 'wall' for deploy.role = 'cloud'")
    if clock == "wall" and config.engine != "flower":
        allowed = f"'auto' or 'simulated' for engine = {config.engine!r}, whose clients take turns"
        raise bad_value("async.clock", clock, allowed)
    if config.by_wall_clock and config.rule:
        raise bad_value("async.mode", config.asynchrony.mode, "'off' for plans of rounds by the clock on the wall")


def _check_plans(config: RunConfig, rule: PlanRule) -> None:
    """Refuse what does not go together with plans, or with cells of this size."""
    if config.federation.participation != 1.0:
        raise bad_value(
            "participation", config.federation.participation, "1.0: plans select the clients (plan.selected-per-edge)"
        )
    if config.algorithm.in_turn(config.split):
        raise bad_value("selection", config.plan.selection, "'everybody': here clients train one after the other")
    if config.algorithm.splits and config.plan.solver.text == "sca":
        allowed = ", ".join(repr(name) for name in SOLVERS if name != "sca")
        raise bad_value("plan.solver", "sca", f"{allowed} for split training, where uploads grow with rounds")
    if config.algorithm.splits and len(set(config.split.cut_layer.numbers)) > 1:
        raise bad_value(
            "cut-layer", config.split.cut_layer.text, "one cut, or 'best', with selection = 'resource-aware'"
        )
    if config.plan.value.text == "battery" and not config.plan.battery_joules:
        raise bad_value("plan.value", "battery", "'battery' with plan.battery-joules above 0")
    if config.cells > config.federation.num_clients:
        raise bad_value("num-edges", config.cells, f"at most num-clients = {config.federation.num_clients}")
    check_cell_size(config.plan, rule, config.federation.num_clients // config.cells)
    _check_devices(config)


def _check_devices(config: RunConfig) -> None:
    """Refuse simulated devices that can't be, and such where devices tell what they are."""
    if config.plan.resources == "measured":
        for name in DEVICE_RANGES:
            default = getattr(RadioWorld(), name)
            if (given := getattr(config.radio, name)) != default:
                allowed = f"{default.text!r} for plan.resources = 'measured': each node's config sets it"
                raise bad_value(RadioWorld.keys()[name], given.text, allowed)
        return
    lowest = config.radio.device_ranges["max_frequency_hz"][0]
    if config.plan.min_frequency_hz > lowest:
        allowed = (
            f"0 to {lowest:g}, the least that radio.max-frequency-hz = {config.radio.max_frequency_hz.text!r} allows"
        )
        raise bad_value("plan.min-frequency-hz", config.plan.min_frequency_hz, allowed)
