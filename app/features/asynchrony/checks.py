"""What does not go together with a tier that waits for nobody, and what has no use there."""

from math import ceil

from espalier.app.features.asynchrony.settings import Asynchrony
from espalier.app.features.asynchrony.tiers import by_wall_clock, client_seconds
from espalier.app.features.case import Case
from espalier.app.features.feature import Unused
from espalier.app.ground.errors import bad_value
from espalier.strategies.flower_strategies import replies_needed


def out_of_step(case: Case) -> str:
    """Return why edges, or clients, are in rounds of their own; nothing where a round is everybody's."""
    own = case[Asynchrony]
    # An edge that has a host of its own waits for its clients.
    return "" if own.mode == "off" or case.deploy.role == "edge" else f"async.mode = {own.mode!r}"


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
    algorithm, why = case.algorithm, ""
    if case.is_flat:
        why = f"{algorithm.name} without edges"
    elif case.deploy.role != "server":
        why = f"deploy.role = {case.deploy.role!r}: edges have hosts of their own, where they wait for their clients"
    elif algorithm.splits or algorithm.rule or algorithm.strategy_key != "edge-strategy":
        why = f"{algorithm.name}: only edges of 'h-fedavg' can go on without clients"
    if why:
        raise bad_value("async.tier", case[Asynchrony].tier, f"'cloud' for {why}")


def _check_clock(case: Case) -> None:
    """Refuse a clock that does not show how long those take who train."""
    clock = case[Asynchrony].clock
    if clock == "simulated" and case.deploy.role == "cloud":
        raise bad_value("async.clock", clock, "'auto' or 'wall' for deploy.role = 'cloud'")
    if clock == "wall" and not case.engine.is_flowers:
        allowed = f"'auto' or 'simulated' for engine = {case.engine.text!r}, whose clients take turns"
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
    """Yield what has no use where tiers wait for all, or whose mode or clock has none."""
    own, keys = case[Asynchrony], Asynchrony.own_keys()
    why = f"async.mode = {own.mode!r}"
    if own.mode == "off":
        yield keys, why
        return
    if case.deploy.role == "edge":
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
    if by_wall_clock(case):
        yield ("async.median-seconds", "async.sigma", "async.trace"), "the clock on the wall shows how long it takes"
    elif case.rule:
        yield ("async.median-seconds", "async.sigma", "async.trace"), "plans say how long clients take"
    elif own.trace:
        yield ("async.median-seconds", "async.sigma"), "async.trace says how long clients take"
