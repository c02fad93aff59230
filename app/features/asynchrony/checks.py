"""What does not go together with a tier that waits for nobody, and what has no use there."""

from math import ceil

from espalier.app.features.asynchrony.settings import Asynchrony
from espalier.app.features.asynchrony.tiers import by_wall_clock, client_seconds
from espalier.app.features.case import Case
from espalier.app.features.feature import Unused
from espalier.app.ground.errors import bad_value
from espalier.app.ground.reasons import first_reason, unused
from espalier.strategies.flower_strategies import replies_needed


def out_of_step(case: Case) -> str:
    """Return why edges, or clients, are in rounds of their own; nothing where a round is everybody's."""
    own = case[Asynchrony]
    # An edge that has a host of its own waits for its clients.
    return "" if own.mode == "off" or not case.here.has_cloud else f"async.mode = {own.mode!r}"


def splits_edges(case: Case) -> bool:
    """Return whether edges do not wait for their clients."""
    own = case[Asynchrony]
    return own.mode != "off" and own.tier == "edges"


def check_files(case: Case) -> None:
    """Refuse a trace that is none."""
    if case[Asynchrony].mode != "off" and not case.rule:
        client_seconds(case[Asynchrony], case.seed, case.federation.num_clients)


def check(case: Case) -> None:
    """Refuse asynchronous tiers where somebody has to be waited for, or nobody knows how long clients take."""
    own, algorithm = case[Asynchrony], case.algorithm
    if own.mode != "off" and case.train.schedule != "constant":
        allowed = f"'constant' for async.mode = {own.mode!r}, where every edge, or client, is in a round of its own"
        raise bad_value("train.schedule", case.train.schedule, allowed)
    if not out_of_step(case):
        return
    _check_clock(case)
    if case.plan.resources == "measured":
        raise bad_value("async.mode", own.mode, "'off' for plan.resources = 'measured': the clock is simulated")
    nodes, unit = case.edges, "num-edges"
    if case.is_flat:
        nodes, unit = case.federation.num_clients, "num-clients"
        if algorithm.splits or algorithm.strategy_key != "cloud-strategy":
            allowed = f"'off' for {algorithm.name} without edges: 'fedavg' is flat, and edges of any algorithm will do"
            raise bad_value("async.mode", own.mode, allowed)
    if own.tier == "edges":
        nodes, unit = ceil(case.federation.num_clients / case.edges), "an edge's clients"
        _check_edges_can_be_asynchronous(case)
    if case.is_flat or own.tier == "edges":
        if case.rule:
            raise bad_value("selection", case.plan.selection, "'everybody' where single clients are not waited for")
        if case.federation.participation != 1.0:
            allowed = "1.0: async.concurrency says how many clients train at a time"
            raise bad_value("participation", case.federation.participation, allowed)
    if own.concurrency > nodes:
        raise bad_value("async.concurrency", own.concurrency, f"at most {unit} = {nodes}, or 0 for all")


def _check_edges_can_be_asynchronous(case: Case) -> None:
    """Refuse edges that do not wait where there are none, where they are others', or do more than average models."""
    algorithm = case.algorithm
    elsewhere = f"deploy.role = {case.deploy.role!r}: edges have hosts of their own, where they wait for their clients"
    does_more = algorithm.splits or algorithm.rule or algorithm.strategy_key != "edge-strategy"
    why = first_reason(
        (case.is_flat, f"{algorithm.name} without edges"),
        (not case.here.is_whole, elsewhere),
        (does_more, f"{algorithm.name}: only edges of 'h-fedavg' can go on without clients"),
    )
    if why:
        raise bad_value("async.tier", case[Asynchrony].tier, f"'cloud' for {why}")


def _check_clock(case: Case) -> None:
    """Refuse a clock that does not show how long those take who train."""
    clock = case[Asynchrony].clock
    if clock == "simulated" and not case.here.reaches_clients:
        raise bad_value("async.clock", clock, "'auto' or 'wall' for deploy.role = 'cloud'")
    if clock == "wall" and not case.on_devices:
        allowed = f"'auto' or 'simulated' for engine = {case.engine.text!r}, which simulates its clients"
        raise bad_value("async.clock", clock, allowed)
    if by_wall_clock(case) and case.rule:
        raise bad_value("async.mode", case[Asynchrony].mode, "'off' for plans of rounds by the clock on the wall")


def check_strategies(case: Case) -> None:
    """Refuse a cloud strategy that makes no model of as few updates as come in at a time."""
    own, spec = case[Asynchrony], case.federation.cloud_strategy
    if not out_of_step(case):
        return
    nodes = case.federation.num_clients if case.is_flat else case.edges
    if own.tier == "edges":
        spec, nodes = case.federation.edge_strategy, case.federation.num_clients // case.edges
    needed = replies_needed(spec.build({}))
    why = f"{spec.name} makes no model of fewer updates"
    if own.mode == "fedasync" and needed > 1:
        raise bad_value("async.mode", own.mode, f"another one: {spec.text} needs {needed} updates at a time, not 1")
    if own.mode == "fedbuff" and needed > own.buffer_size_of(nodes):
        raise bad_value("async.buffer-size", own.buffer_size, f"{needed} or more: {why}")
    if own.mode == "semi-synchronous" and own.concurrency and needed > own.concurrency:
        raise bad_value("async.concurrency", own.concurrency, f"{needed} or more, or 0: {why}")


def without_use(case: Case) -> Unused:
    """Return what has no use where tiers wait for all, or whose mode or clock has none."""
    own, keys = case[Asynchrony], Asynchrony.own_keys()
    why, drawn = f"async.mode = {own.mode!r}", ("async.median-seconds", "async.sigma")
    is_never_late = own.mode == "semi-synchronous" and not own.deadline_seconds
    never_late = "with async.deadline-seconds = 0 no update is late"
    return unused(
        (own.mode == "off", keys, why),
        (not case.here.has_cloud, keys, "an edge waits for its own clients"),
        (own.mode != "fedbuff", ("async.buffer-size",), why),
        (own.mode != "fedasync", ("async.mixing",), why),
        (own.mode != "semi-synchronous", ("async.deadline-seconds",), why),
        (is_never_late, ("async.staleness", "async.max-staleness"), never_late),
        (by_wall_clock(case), (*drawn, "async.trace"), "the clock on the wall shows how long it takes"),
        (case.rule, (*drawn, "async.trace"), "plans say how long clients take"),
        (own.trace, drawn, "async.trace says how long clients take"),
    )
