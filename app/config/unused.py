"""Settings that were given and that a run has no use for."""

from collections.abc import Iterable

from espalier.app.config.defaults import with_defaults
from espalier.app.config.run_config import RunConfig
from espalier.app.planning.rule import PlanRule
from espalier.app.settings.sections import Plans, Split
from espalier.app.tasks.kinds import task_kind
from espalier.app.tasks.partition import goes_by_edges, unused_by

# The solvers to which no client is worth more than another.
WORTHLESS = ("random", "cheapest-at-full-power")
VALUE_KEYS = ("plan.value-weight", "plan.battery-joules")


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


def stack_in_use(config: RunConfig) -> int:
    """Return how many clients train side by side: ``stack``, and 0 where that has no effect."""
    return 0 if "stack" in unused_keys(config) else config.stack


def records_gradients(config: RunConfig) -> bool:
    """Return whether GPUs record gradients: ``train.cuda-graph``, and False where that has no effect."""
    return config.train.cuda_graph and "train.cuda-graph" not in unused_keys(config)


def _without_use(config: RunConfig) -> Iterable[tuple[Iterable[str], str]]:
    """Yield keys, and why the run has no use for them."""
    algorithm, data = config.algorithm, config.data
    name = f"algorithm = {algorithm.text!r}"
    keys = {kind.name: [k for k in kind.keys().values() if "." in k] for kind in config.sections().values()}
    task = task_kind(data)
    if config.is_flat:
        if algorithm.strategy_key != "edge-strategy":
            yield ("edge-strategy",), f"{name} has no edges"
        if not task.grows:  # there slots pass by edge rounds
            yield ("edge-rounds",), f"{name} has no edges"
        if not (config.rule or goes_by_edges(data.partition)):
            yield ("num-edges",), f"{name} has no edges"
    if algorithm.splits:
        yield from _splitting_without_use(config)
    else:
        cutting = ("cut-layer", "tail-layer", *keys["split"], *keys["fine-tune"], "guard.activation-norm")
        yield cutting, f"{name} cuts no model"
    yield from _execution_without_use(config)
    if not (config.plan.resources == "measured" or (algorithm.splits and config.split.transport == "stream")):
        yield keys["stream"], "no mini-batch goes through a stream: see split.transport"
    yield from _asynchrony_without_use(config, keys["async"])
    yield from _availability_without_use(config, keys["availability"])
    yield from _stop_without_use(config, keys["stop"])
    if config.engine != "flower":
        yield ("deploy.reply-timeout",), f"with engine = {config.engine!r} nobody is late"
        yield ("deploy.nodes-move",), f"with engine = {config.engine!r} no node has a config that changes"
        yield ("edge-names",), f"with engine = {config.engine!r} edges are named by their numbers"
    if config.engine != "ray":
        yield keys["ray"], f"engine = {config.engine!r}"
    if not config.rule:
        yield (*keys["plan"], *keys["radio"]), "no round is planned: see selection"
    else:
        yield from _plan_without_use(config, config.rule, keys["radio"])
    if not task.counts_requests:
        yield keys["caching"], f"dataset = {data.dataset.text!r}"
        yield unused_by(data.partition), f"partition = {data.partition.text!r}"
    else:
        yield ("data-dir", "partition", "alpha", "edge-alpha", *keys["data"]), "dataset = 'video-caching' is simulated"
    if not algorithm.trains_clients:
        yield ("participation", *keys["guard"]), f"{name} trains no clients"
    if config.guard.mode == "off":
        yield ("guard.update-norm", "guard.activation-norm"), "guard.mode = 'off'"
    if config.train.optimizer != "sgd":
        yield ("train.momentum",), f"optimizer = {config.train.optimizer!r}"
    if config.federation.global_rounds == 1:
        yield ("train.schedule",), "global-rounds = 1"
    if not algorithm.has_model:
        yield (
            (
                *("model", "local-epochs", "batches-per-epoch", "batch-size", "optimizer", "learning-rate"),
                *keys["train"],
            ),
            f"{name} trains nothing",
        )


def _splitting_without_use(config: RunConfig) -> Iterable[tuple[Iterable[str], str]]:
    if not config.algorithm.shares_server:
        yield ("split.server-order",), f"algorithm = {config.algorithm.text!r} has a server block for each client"
    elif config.algorithm.in_turn(config.split.model_copy(update={"server_order": "interleaved"})):
        yield ("split.server-order",), f"algorithm = {config.algorithm.text!r} has an order of its own"
    if config.split.server_optimizer != "sgd":
        yield ("split.server-momentum",), f"split.server-optimizer = {config.split.server_optimizer!r}"
    if not config.fine_tune.steps:
        yield ("fine-tune.rate",), "fine-tune.steps = 0"
    if not config.split.tail_layer.is_none:
        yield ("split.label-policy",), f"with tail-layer = {config.split.tail_layer.text!r} no label leaves a client"


def _execution_without_use(config: RunConfig) -> Iterable[tuple[Iterable[str], str]]:
    """Yield what says how clients of one process train, where they can't train so."""
    algorithm, split = config.algorithm, config.split
    name = f"algorithm = {algorithm.text!r}"
    if not_stacked := _why_not_side_by_side(config):
        yield ("stack",), not_stacked
    if config.engine == "flower" or split.transport == "stream":
        yield ("split.execution",), "clients and edges have processes of their own, or streams between them"
    elif config.has_clients_in_workers:
        yield ("split.execution",), _no_edge_in_a_worker(config)
    elif algorithm.shares_server and not algorithm.in_turn(split):
        yield ("split.execution",), f"in {name} clients advance together, by messages"
    if config.device == "cpu":
        yield ("train.cuda-graph",), "device = 'cpu'"
    elif config.deploy.role == "cloud":
        yield ("train.cuda-graph",), "deploy.role = 'cloud' trains nobody"
    elif algorithm.splits:
        yield ("train.cuda-graph",), f"{name} trains no whole model"
    elif config.stack and not not_stacked:
        yield ("train.cuda-graph",), f"stack = {config.stack}: clients train side by side"


def _why_not_side_by_side(config: RunConfig) -> str:
    """Return why clients can't train side by side in the run; nothing if they can."""
    algorithm, split = config.algorithm, config.split
    by_messages = split.execution == "messages" or split.transport == "stream"
    if config.engine == "flower":
        return "engine = 'flower' runs every client by itself"
    if config.has_clients_in_workers:
        return _no_edge_in_a_worker(config)
    if algorithm.splits and (algorithm.shares_server or by_messages or not split.tail_layer.is_none):
        return "side by side train whole models, and in SFL-V1, HSFL and PHSFL halves by fused steps"
    return "" if algorithm.trains_clients else f"algorithm = {algorithm.text!r} trains no clients"


def _no_edge_in_a_worker(config: RunConfig) -> str:
    """Return why single clients, not edges, are run by Ray's workers, where that is so."""
    if config.is_flat:
        return f"algorithm = {config.algorithm.text!r} has no edges that engine = 'ray' could run as a whole"
    return "where clients move, or edges do not wait for them, engine = 'ray' runs no edge as a whole"


def _plan_without_use(
    config: RunConfig, rule: PlanRule, radio_keys: Iterable[str]
) -> Iterable[tuple[Iterable[str], str]]:
    name = f"algorithm = {config.algorithm.text!r}"
    if not rule.selects_a_number:
        yield (
            (
                *("plan.solver", "plan.selected-per-edge", "plan.spare", "plan.max-overlap", "plan.value", *VALUE_KEYS),
                *("plan.theta", "plan.min-frequency-hz"),
            ),
            f"{name} has a rule of its own",
        )
    elif config.plan.solver.text == "cheapest-at-full-power":
        yield ("plan.theta", "plan.min-frequency-hz"), f"plan.solver = {config.plan.solver.text!r}"
    if not config.plan.value.module and config.plan.value.name == "uniform":
        yield ("plan.value-weight",), "plan.value = 'uniform'"
    if config.plan.solver.text in WORTHLESS:
        yield ("plan.value", "plan.value-weight"), f"plan.solver = {config.plan.solver.text!r}"
    if not rule.has_limits:
        yield ("plan.margin", "plan.late-share", "plan.divide-by-arrived"), f"{name} keeps no deadline"
        if not config.clients_walk:
            yield ("plan.deadline-seconds",), f"{name} keeps no deadline, and nobody walks"
    elif not config.algorithm.adds_gradients:
        yield ("plan.divide-by-arrived",), f"edges of {name} add up no gradients"
    if config.plan.resources == "measured":
        yield radio_keys, "plan.resources = 'measured': links are measured"
        yield ("plan.spare",), "plan.resources = 'measured': an edge waits for all whom it selects, or the deadline"
        yield ("plan.late-share",), "plan.resources = 'measured': the error of measured links is not known"
    elif not config.radio.planning_error_db:
        yield ("plan.late-share",), "with radio.planning-error-db = 0.0 nobody is late"


def _asynchrony_without_use(config: RunConfig, keys: Iterable[str]) -> Iterable[tuple[Iterable[str], str]]:
    own = config.asynchrony
    why = f"async.mode = {own.mode!r}"
    if own.mode == "off":
        yield keys, why
        return
    if config.deploy.role == "edge":
        yield keys, "an edge waits for its own clients"
        return
    if own.mode != "fedbuff":
        yield ("async.buffer-size",), why
    if own.mode != "fedasync":
        yield ("async.mixing",), why
    if own.mode != "semi-synchronous":
        yield ("async.deadline-seconds",), why
    elif not own.deadline_seconds:
        yield ("async.staleness", "async.max-staleness"), "with async.deadline-seconds = 0 no update is late"
    if config.by_wall_clock:
        yield ("async.median-seconds", "async.sigma", "async.trace"), "the clock on the wall shows how long it takes"
    elif config.rule:
        yield ("async.median-seconds", "async.sigma", "async.trace"), "plans say how long clients take"
    elif own.trace:
        yield ("async.median-seconds", "async.sigma"), "async.trace says how long clients take"


def _availability_without_use(config: RunConfig, keys: Iterable[str]) -> Iterable[tuple[Iterable[str], str]]:
    own = config.availability
    if not config.algorithm.trains_clients:
        yield keys, f"{config.algorithm.name} trains no clients"
        return
    why = f"availability.mode = {own.mode!r}"
    if own.mode != "markov":
        yield ("availability.leave", "availability.back"), why
    if own.mode != "trace":
        yield ("availability.trace",), why


def _stop_without_use(config: RunConfig, keys: Iterable[str]) -> Iterable[tuple[Iterable[str], str]]:
    of_tests = ("stop.accuracy", "stop.patience")
    if config.deploy.role == "edge":
        yield keys, "the cloud's run says when it ends"
    if not config.algorithm.has_model:
        yield of_tests, f"algorithm = {config.algorithm.text!r} has no model to test"
    elif not config.report.evaluate_every:
        yield of_tests, "with report.evaluate-every = 0 only the last model is tested"
    if not config.rule:
        yield ("stop.joules",), "no round is planned: see selection"
