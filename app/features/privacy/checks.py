"""What does not go together with differential privacy, since its guarantee would not hold."""

from flwr.serverapp.strategy import QFedAvg
from torch import nn

from espalier.app.features.case import Case
from espalier.app.features.feature import Unused
from espalier.app.features.privacy.levels import accounting, is_by_cloud, is_by_edges, is_central
from espalier.app.features.privacy.settings import Privacy
from espalier.app.ground.errors import UserError, bad_value
from espalier.app.ground.reasons import first_reason
from espalier.app.ground.strategy_spec import StrategySpec
from espalier.app.tasks.kinds import task_kind
from espalier.clients.messages.train import TRAIN
from espalier.clients.shared.batch_statistics import layer_with_statistics
from espalier.strategies.flower_strategies import PRIVATE

MEANS = ("FedAvg", "FedProx")  # of the built-in strategies, those that make a plain mean
SAMPLES = ("fraction_train", "min_train_nodes", "min_available_nodes")  # their parameters of how many train


def is_on(case: Case) -> bool:
    """Return whether somebody is protected."""
    return case[Privacy].level != "none" and case.algorithm.trains_clients


def check(case: Case) -> None:
    """Refuse settings with which the guarantee would not hold."""
    own = case[Privacy]
    if not is_on(case):
        return
    if not own.clip and (own.noise or own.epsilon):
        raise bad_value(
            "privacy.clip", own.clip, "more than 0: without a longest update there is no noise that hides one"
        )
    if why := _why_not_algorithm(case):
        raise _refused(case, why)
    if own.level == "client-at-edge" and case.is_flat:
        raise bad_value("privacy.level", own.level, "'client-at-cloud' for an algorithm without edges")
    if own.level == "edge-at-cloud" and case.is_flat:
        raise bad_value("privacy.level", own.level, "'client-at-cloud': without edges there is none to protect")
    if own.level == "client-at-cloud" and case.edge_rounds > 1:
        allowed = (
            "1 for privacy.level = 'client-at-cloud': in a second edge round all updates of an edge follow from each "
            "client's first, so that its part has no bound; 'client-at-edge' has noise in every edge round"
        )
        raise bad_value("edge-rounds", case.federation.edge_rounds, allowed)
    if case.data.validation_share:
        allowed = f"0.0 for privacy.level = {own.level!r}: the best round is chosen by figures without noise"
        raise bad_value("data.validation-share", case.data.validation_share, allowed)
    figures = f"for privacy.level = {own.level!r}: figures without noise would choose the last round"
    for key, given in (("stop.accuracy", case.stop.accuracy), ("stop.patience", case.stop.patience)):
        if given:
            raise bad_value(key, given, f"0 {figures}")
    if is_central(case):
        _check_mean(case)
    if own.level == "example-at-client":
        _check_steps(case)


def _why_not_algorithm(case: Case) -> str:
    algorithm, client, name = case.algorithm, case.algorithm.client, f"algorithm = {case.algorithm.text!r}"
    sends_more = algorithm.adds_gradients or not client.is_plain or client.answers_itself(TRAIN)
    sends_none = not algorithm.averages and case[Privacy].level != "example-at-client"
    mover = next(iter(case.movers), "")
    return first_reason(
        (algorithm.splits, f"{name}: activations and gradients of every example pass the cut without noise"),
        (algorithm.written, f"{name}: what the clients of an algorithm of your own send is not known"),
        (sends_more, f"{name}, whose clients send more than one update, or keep what later ones are made of"),
        (sends_none, f"{name}, whose clients send no updates"),
        (case.rule, f"{name} with plans, which choose by what clients tell of themselves"),
        (case.out_of_step, f"{case.out_of_step}, where no fixed number of updates is averaged"),
        (mover, f"{mover}: the budget is that of an edge's clients, who must stay there"),
        (task_kind(case.data).grows, f"{case.data.source}, whose clients get more data from round to round"),
    )


def _check_mean(case: Case) -> None:
    """Refuse averages in which one part is not bounded."""
    level, guard = f"privacy.level = {case[Privacy].level!r}", case.guard
    if case.train.weighting != "equal":
        allowed = f"'equal' for {level}: with weights by examples one part of an average has no bound"
        raise bad_value("train.weighting", case.train.weighting, allowed)
    if guard.update_norm and guard.mode in ("leave-out", "clip"):
        why = "one update would decide on others by their median"
        allowed = f"0 for {level} and guard.mode = 'leave-out', or guard.mode = 'warn': {why}"
        raise bad_value("guard.update-norm", guard.update_norm, allowed)


def _check_steps(case: Case) -> None:
    level = f"privacy.level = {case[Privacy].level!r}, which has a gradient for every example"
    if case.stack:
        raise bad_value("stack", case.stack, f"0 for {level}")
    if case.train.cuda_graph:
        raise bad_value("train.cuda-graph", True, f"false for {level}")


def single_updates(case: Case) -> str:
    """Return that edges clip single updates; nothing where they do not."""
    clips = is_on(case) and is_by_edges(case)
    return f"privacy.level = {case[Privacy].level!r}, where edges clip single updates" if clips else ""


def as_sent(case: Case) -> str:
    """Return why edges' averages must not be changed on their way; nothing where they may be."""
    if is_on(case) and is_by_edges(case) and is_by_cloud(case):
        return f"privacy.level = {case[Privacy].level!r}: averages that are decoded can be farther apart than they were"
    return ""


def check_strategies(case: Case) -> None:
    """Refuse strategies that make no plain mean where noise is added to one, or that use figures without noise."""
    if not is_on(case):
        return
    accounting(case, "epsilon_of")
    means = [case.algorithm.strategy_key] * is_by_edges(case) + ["cloud-strategy"] * is_by_cloud(case)
    for spec in case.strategies_here:
        if spec.key in means and (spec.module or spec.name not in MEANS):
            raise _unfit(case, spec, f"{' or '.join(map(repr, MEANS))}, which make a plain mean")
        if is_by_edges(case) and spec == case.answered and any(name in SAMPLES for name, _ in spec.parameters):
            raise _unfit(case, spec, f"{spec.name} without {', '.join(SAMPLES)}: participation says how many train")
        if spec.module or spec.has_any((*PRIVATE, QFedAvg)):
            raise _unfit(case, spec, "one of Flower's that uses models alone, and adds no noise of its own")


def check_model(case: Case, model: nn.Module) -> None:
    """Refuse a model whose examples have no gradients of their own."""
    if not is_on(case) or case[Privacy].level != "example-at-client":
        return
    if found := layer_with_statistics(model):
        name, layer = found
        raise _refused(
            case,
            f"a model with {type(layer).__name__} ({name}), in which examples of a mini-batch change each other: "
            "take one with nn.GroupNorm",
        )
    recurrent = ((name, layer) for name, layer in model.named_modules() if isinstance(layer, nn.GRU | nn.RNN))
    for name, layer in recurrent:
        kind = type(layer).__name__
        raise _refused(case, f"a model with {kind} ({name}), which has no gradients of single examples: take nn.LSTM")


def falls_short(case: Case) -> dict[str, str]:
    """Return what protects less than it says."""
    own = case[Privacy]
    if not is_on(case):
        return {}
    if not (own.noise or own.epsilon):
        return {"privacy.level": "nobody is protected without noise: set privacy.epsilon = 8, or privacy.noise"}
    units = case.edges if own.level == "edge-at-cloud" else case.federation.num_clients
    if own.level != "example-at-client" and own.delta >= 1 / units:
        return {"privacy.delta": f"it should be much less than one over the {units} who are protected"}
    return {}


def without_use(case: Case) -> Unused:
    """Yield all but the level where nobody is protected."""
    if case[Privacy].level == "none":
        yield [key for key in Privacy.own_keys() if key != "privacy.level"], "privacy.level = 'none'"


def _refused(case: Case, why: str) -> UserError:
    return bad_value("privacy.level", case[Privacy].level, f"'none' for {why}")


def _unfit(case: Case, spec: StrategySpec, allowed: str) -> UserError:
    return bad_value(spec.key, spec.text, f"{allowed}, for privacy.level = {case[Privacy].level!r}")
