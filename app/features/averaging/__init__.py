"""Strategies and weights of averages, and learning rates: what suits the algorithm and the number of replies."""

from flwr.serverapp.strategy import Bulyan, FedProx, MultiKrum

from espalier.app.algorithms.algorithm import ONE_NODE, Algorithm
from espalier.app.algorithms.registry import ALGORITHMS
from espalier.app.features.case import Case
from espalier.app.features.feature import Feature, Unused
from espalier.app.ground.errors import bad_value
from espalier.app.ground.reasons import first_reason, unused
from espalier.app.ground.strategy_spec import StrategySpec
from espalier.app.settings.sections import TrainSettings
from espalier.app.tasks.kinds import task_kind
from espalier.app.tasks.partition import goes_by_edges
from espalier.strategies.flower_strategies import CLIPPED_BY_CLIENTS, replies_needed, replies_to_be_robust
from espalier.strategies.randomness import sample_size


def check(case: Case) -> None:
    """Refuse strategies, weights and rates that the algorithm has no use for, and more edges than clients."""
    _refuse_unused_strategy(case.algorithm, case.over_clients, is_flat=case.is_flat)
    if case.algorithm.sends_nothing and not (cloud := case.federation.cloud_strategy).is_plain:
        raise bad_value(cloud.key, cloud.text, f"'FedAvg': {case.algorithm.name} averages nothing")
    _check_weighting(case.algorithm, case.train, is_flat=case.is_flat)
    _check_steps(case.algorithm, case.train)
    if case.edges > case.federation.num_clients:
        raise bad_value("num-edges", case.edges, f"at most num-clients = {case.federation.num_clients}")


def check_strategies(case: Case) -> None:
    """Refuse strategies that can't be made, or that would not do in this run what they are."""
    specs = case.strategies_here
    for spec in specs:
        spec.check()
        if spec.has_any(CLIPPED_BY_CLIENTS) and not (spec == case.answered and _trains_plainly(case.algorithm)):
            allowed = "one that clips at the server: clients clip for their own tier, whole models trained as FedAvg's"
            raise bad_value(spec.key, spec.text, allowed)
        if spec.has_any(FedProx) and case.algorithm.client.pulls:
            allowed = f"another strategy: {case.algorithm.name} draws clients' steps by itself"
            raise bad_value(spec.key, spec.text, allowed)
        compares = spec.has_any((MultiKrum, Bulyan))
        if compares and spec == case.answered and not (case.algorithm.averages or case.algorithm.splits):
            raise bad_value(spec.key, spec.text, f"one that compares no models: {case.algorithm.name} sends none")
    samples, samples_some = case.answered, case.here.reaches_clients and case.federation.participation < 1
    if samples and samples_some and not (case.algorithm.splits or samples.takes("fraction_train")):
        allowed = f"1.0: {samples.name} has no fraction_train"
        raise bad_value("participation", case.federation.participation, allowed)
    if not (case.on_devices or case.out_of_step):  # devices may name their edge, asynchronous tiers have own checks
        for spec, replies, senders in _replies_of_tiers(case):
            asked = _asked(case, spec, replies)
            _check_enough_replies(spec, asked, f"{senders} in a round" if asked < replies else senders)


def _trains_plainly(algorithm: Algorithm) -> bool:
    """Return whether clients train whole models as FedAvg's clients do."""
    return algorithm.client.is_plain and not (algorithm.splits or algorithm.client.stays_any)


def _check_enough_replies(spec: StrategySpec, replies: int, senders: str) -> None:
    """Refuse a strategy that makes no model of so many replies."""
    if (needed := replies_needed(spec.build({}))) > replies:
        why = f"{spec.name} needs the replies of {needed}, there are {replies}"
        raise bad_value(spec.key, spec.text, f"another strategy, or more {senders}: {why}")


def _replies_of_tiers(case: Case) -> list[tuple[StrategySpec, int, str]]:
    """Return the strategy of each tier, how many replies it can get at least, and whose they are."""
    own = case.federation
    if case.is_flat:
        return [(case.answered or own.cloud_strategy, own.num_clients, "clients")]
    of_an_edge = own.num_clients // case.edges
    return [(own.cloud_strategy, case.edges, "edges"), (own.edge_strategy, of_an_edge, "clients of an edge")]


def _asked(case: Case, spec: StrategySpec, replies: int) -> int:
    """Return how many of those who can reply a strategy asks in a round."""
    if spec.key != case.algorithm.strategy_key or case.rule:
        return replies
    least = getattr(spec.build(ONE_NODE), "min_train_nodes", 1)
    return min(replies, max(least, sample_size(replies, case.federation.participation)))


def falls_short(case: Case) -> dict[str, str]:
    """Return the keys of strategies that withstand fewer malicious nodes than they are told of, with the reasons."""
    reasons: dict[str, str] = {}
    here = case.strategies_here
    for spec, replies, senders in _replies_of_tiers(case):
        needed = replies_to_be_robust(spec.build({})) if spec in here else 0
        if (asked := _asked(case, spec, replies)) < needed:
            most = max(0, (asked - 3) // 2)
            reasons[spec.key] = (
                f"to withstand so many malicious nodes {spec.name} needs {needed} replies, and gets those of "
                f"{asked} {senders}; with them num_malicious_nodes is at most {most}"
            )
    return reasons


def _refuse_unused_strategy(algorithm: Algorithm, spec: StrategySpec, *, is_flat: bool) -> None:
    """Refuse a strategy over clients that an algorithm has no use for."""
    if spec.key == algorithm.strategy_key or spec.is_plain:
        return
    others = ", ".join(name for name, other in ALGORITHMS.items() if other.strategy_key == spec.key)
    what = "by edge-strategy alone" if algorithm.strategy_key and algorithm.averages else "nothing"
    why = first_reason(
        (is_flat, f"without edges averages {what}{algorithm.by_edges.unless}"),
        (True, f"decides how edges train; other strategies are for {others}"),
    )
    raise bad_value(spec.key, spec.text, f"'FedAvg': {algorithm.name} {why}")


def _check_weighting(algorithm: Algorithm, train: TrainSettings, *, is_flat: bool) -> None:
    """Refuse equal weights where they are so anyway, or where nothing is averaged."""
    why = first_reason(
        (algorithm.adds_gradients, f"{algorithm.name} weighs all of its clients and edges equally by itself"),
        (is_flat and not algorithm.averages, f"{algorithm.name} averages no models{algorithm.by_edges.unless}"),
    )
    if why and train.weighting != "examples":
        raise bad_value("train.weighting", train.weighting, f"'examples': {why}")


def _check_steps(algorithm: Algorithm, train: TrainSettings) -> None:
    """Refuse learning rates that change where steps are counted by one rate, and optimizers whose steps can't be."""
    if train.optimizer != "sgd" and algorithm.counts_gradients:
        allowed = f"'sgd' for {algorithm.name}, which counts the gradients in what clients learned"
        raise bad_value("optimizer", train.optimizer, allowed)
    if train.schedule != "constant" and algorithm.adds_gradients:
        allowed = f"'constant' for {algorithm.name}, whose edges add up gradients"
        raise bad_value("train.schedule", train.schedule, allowed)


def without_use(case: Case) -> Unused:
    """Return what is for edges that there are none of, for another optimizer, or for more rounds."""
    algorithm, no_edges = case.algorithm, f"algorithm = {case.algorithm.text!r} has no edges"
    split, trains_server = case.split, algorithm.splits and not (algorithm.auxiliary and not case.split.upload_every)
    # The server's blocks have the clients' momentum by default.
    of_server = trains_server and split.server_optimizer == "sgd" and split.server_momentum == case.train.momentum
    over = case.federation.edge_strategy
    # Parameters may say who is selected; FedProx draws steps.
    averages_only = algorithm.sends_nothing and not (over.parameters or over.proximal_mu)
    slots_pass, in_cells = task_kind(case.data).grows, case.rule or goes_by_edges(case.data.partition)
    return unused(
        (case.is_flat and algorithm.strategy_key != "edge-strategy", ("edge-strategy",), no_edges),
        (averages_only, (over.key,), f"{algorithm.name} averages nothing"),
        (case.is_flat and not slots_pass, ("edge-rounds",), no_edges),
        (case.is_flat and not in_cells, ("num-edges",), no_edges),
        (case.train.optimizer != "sgd" and not of_server, ("train.momentum",), f"optimizer = {case.train.optimizer!r}"),
        (case.federation.global_rounds == 1, ("train.schedule",), "global-rounds = 1"),
    )


AVERAGING = Feature(
    name="averaging", check=check, check_strategies=check_strategies, falls_short=falls_short, without_use=without_use
)
