"""What Flower's strategies are like: how many nodes they need, how they weigh, what they refuse."""

from collections.abc import Iterator
from contextlib import contextmanager

from flwr.serverapp.exception import AggregationError, InconsistentMessageReplies
from flwr.serverapp.strategy import (
    Bulyan,
    DifferentialPrivacyClientSideAdaptiveClipping,
    DifferentialPrivacyClientSideFixedClipping,
    DifferentialPrivacyServerSideAdaptiveClipping,
    DifferentialPrivacyServerSideFixedClipping,
    FedAdagrad,
    FedAdam,
    FedAvgM,
    FedYogi,
    MultiKrum,
    QFedAvg,
    Strategy,
)

from espalier.clients.messages.train import NUM_EXAMPLES, WANTS_NORM_BIT

# What Flower's strategies raise for replies that they can't use.
REFUSALS = (AggregationError, InconsistentMessageReplies)
CLIPPED_BY_CLIENTS = (DifferentialPrivacyClientSideAdaptiveClipping, DifferentialPrivacyClientSideFixedClipping)
PRIVATE = (
    *CLIPPED_BY_CLIENTS,
    DifferentialPrivacyServerSideAdaptiveClipping,
    DifferentialPrivacyServerSideFixedClipping,
)
SERVER_OPTIMIZERS = (FedAdagrad, FedAdam, FedAvgM, FedYogi, QFedAvg)


def layers(strategy: Strategy) -> list[Strategy]:
    """Return a strategy and those inside of it, as in Flower's differential privacy strategies, the innermost last."""
    found = [strategy]
    while isinstance(inner := getattr(found[-1], "strategy", None), Strategy):
        found.append(inner)
    return found


def unwrapped(strategy: Strategy) -> Strategy:
    """Return the strategy inside of wrappers."""
    return layers(strategy)[-1]


def weight_key(strategy: Strategy) -> str:
    """Return the metric by which a strategy weights replies."""
    return str(getattr(unwrapped(strategy), "weighted_by_key", NUM_EXAMPLES))


def needed_metrics(strategy: Strategy) -> dict[str, float]:
    """Return metrics without which a strategy makes no model, and their least: QFedAvg weighs by powers of losses."""
    inner = unwrapped(strategy)
    return {inner.train_loss_key: 0.0} if isinstance(inner, QFedAvg) else {}


def told_by(strategy: Strategy) -> dict[str, bool]:
    """Return what clients are told beside what a strategy tells them: that it wants their norm bits."""
    adaptive = DifferentialPrivacyClientSideAdaptiveClipping
    return {WANTS_NORM_BIT: True} if any(isinstance(layer, adaptive) for layer in layers(strategy)) else {}


def own_statistics(strategy: Strategy) -> bool | None:
    """Return whether what a strategy makes of running statistics is meant; None where its models have to tell.

    Those of a server optimizer are not: it is for what gradients move. The noise of differential privacy is, for plain
    averages would give away what it hides. A strategy of one's own says so by an attribute of this name.
    """
    every = layers(strategy)
    if any(isinstance(layer, PRIVATE) for layer in every):
        return True
    said = [own for layer in every if (own := getattr(layer, "own_statistics", None)) is not None]
    return bool(said[0]) if said else False if isinstance(every[-1], SERVER_OPTIMIZERS) else None


def forget_sent_model(strategy: Strategy) -> None:
    """Let FedAvgM take the model of this round, not its own last aggregate, for the one that it sends out.

    In a flat federation the two are the same. Here the model comes from the other tier.
    """
    if isinstance(inner := unwrapped(strategy), FedAvgM):
        inner.current_arrays = None


def forget_round(strategy: Strategy, server_round: int) -> None:
    """Let Flower's strategies that account for privacy drop what they planned for a round that gave no model."""
    for layer in layers(strategy):
        if isinstance(layer, PRIVATE) and getattr(layer, "accountant", None) is not None:
            layer.aggregate_train(server_round, [])


def nodes_needed(strategy: Strategy, phase: str, connected: int) -> int:
    """Return how many nodes a strategy needs: those of Flower's FedAvg family wait for them before they sample.

    Parameters
    ----------
    strategy : Strategy
        The strategy; one without such limits needs no nodes.
    phase : str
        ``"train"`` or ``"evaluate"``.
    connected : int
        Number of nodes that are there.
    """
    inner = unwrapped(strategy)
    fraction = getattr(inner, f"fraction_{phase}", 0.0)
    if fraction == 0.0:
        return 0
    sampled = max(int(connected * fraction), getattr(inner, f"min_{phase}_nodes", 0))
    needed = max(sampled, getattr(inner, "min_available_nodes", 0))
    return max(needed, replies_needed(inner)) if phase == "train" else needed


@contextmanager
def limits_within(strategy: Strategy, size: int | None) -> Iterator[None]:
    """Let a strategy wait for no more than `size` nodes while the block lasts; None: for as many as it says.

    Its limits may be of the edge's size at the start, and its nodes under other edges now. They are settings, which a
    resumed run compares, so they are put back.
    """
    inner, limits = unwrapped(strategy), ("min_available_nodes", "min_train_nodes", "min_evaluate_nodes")
    beyond = {} if size is None else {k: v for k in limits if (v := getattr(inner, k, 0)) > size}
    for name in beyond:
        setattr(inner, name, size)
    try:
        yield
    finally:
        for name, limit in beyond.items():
            setattr(inner, name, limit)


def replies_needed(strategy: Strategy) -> int:
    """Return the number of replies without which a strategy makes no model; 0 for one without such a limit."""
    inner = unwrapped(strategy)
    return 4 * inner.num_malicious_nodes + 3 if isinstance(inner, Bulyan) else 0


def replies_to_be_robust(strategy: Strategy) -> int:
    """Return the number of replies that a strategy needs to withstand as many malicious nodes as it is told of.

    Krum needs more than twice as many and two (Blanchard et al., 2017); of fewer it makes a model all the same. 0 for a
    strategy without such a limit, or which is told of none.
    """
    inner = unwrapped(strategy)
    malicious = inner.num_malicious_nodes if isinstance(inner, MultiKrum) else 0
    return 2 * malicious + 3 if malicious else 0


def check_minimum(who: str, strategy: Strategy, size: int, unit: str) -> None:
    """Raise ValueError if a strategy waits for more nodes, or edges, than there are."""
    for phase in ("train", "evaluate"):
        if (needed := nodes_needed(strategy, phase, size)) > size:
            raise ValueError(
                f"{who} has {size} {unit}(s) but its {type(strategy).__name__} needs {needed}: "
                f"see its min_available_nodes, min_{phase}_nodes and fraction_{phase}"
            )


def check_clipping(who: str, strategy: Strategy) -> None:
    """Raise ValueError if a strategy over edges leaves the clipping to its nodes: clients clip their own updates.

    Over edge rounds those add up, so an edge's update may be longer than the norm that the strategy's noise is for.
    """
    for layer in layers(strategy):
        if isinstance(layer, CLIPPED_BY_CLIENTS):
            raise ValueError(
                f"{who}'s nodes are edges, which do not clip as {type(layer).__name__} wants: "
                "take one that clips at the server, or give it to the edges"
            )
