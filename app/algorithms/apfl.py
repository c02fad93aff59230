"""APFL: each client's model is a mixture of the one that is averaged and one of its own (arXiv:2003.13461)."""

from typing import Annotated

import torch
from pydantic import Field

from espalier.app.algorithms.algorithm import Algorithm
from espalier.app.algorithms.strategies import edge_of_halves, settings_sent
from espalier.app.settings.section import Section
from espalier.clients.half import ClientHalf
from espalier.clients.shared.correction import Weights
from espalier.clients.shared.local_round import Begun, Done, LocalRound, OptimizerState, Pass
from espalier.strategies.edge_half import moved

MIXING, ADAPTS = "apfl.mixing", "apfl.adapts"


class ApflSettings(Section):
    """Of APFL."""

    name = "apfl"

    mixing: Annotated[float, Field(ge=0, le=1)] = 0.5
    """With [APFL](personal.md#apfl): the share of its own model in what a client uses, the paper's alpha."""
    adapts: bool = False
    """Each client's share follows the gradient of its loss from there on, within 0 and 1."""


def apfl_round(begun: Begun) -> LocalRound:
    """In every step train ``w``, then ``v`` by the gradient at ``a * v + (1 - a) * w`` with the new ``w`` (Alg. 1).

    `v` moves by `a` times the step that the optimizer makes there. Where it adapts, `a` moves by the same step's part
    along ``v - w``: with plain SGD both are the paper's.
    """
    own = begun.kept or begun.start
    w, v = begun.start, {name: own[name] for name in begun.start}
    mixing, adapts = float(begun.kept.get(MIXING, begun.sent[MIXING])), bool(begun.sent[ADAPTS])
    of_w, of_v, losses = OptimizerState(), OptimizerState(), list[float]()
    for number in range(begun.num_batches):
        learned = yield Pass(w, batches=(number,), optimizer=of_w)
        w = learned.weights
        v = {name: tensor.to(w[name]) for name, tensor in v.items()}
        at = {**v, **mixture(w, v, mixing, begun.trained)}
        made = (yield Pass(at, batches=(number,), optimizer=of_v)).weights
        steps = {name: made[name].to(at[name]) - at[name] for name in begun.trained}
        apart = {name: v[name] - w[name] for name in steps} if adapts else {}
        v = {**made, **{name: v[name] + mixing * step for name, step in steps.items()}}
        along = sum(float((apart[name] * steps[name]).sum()) for name in apart)
        mixing = min(max(mixing + along, 0.0), 1.0)
        losses.append(learned.loss)
    return Done(w, kept={**v, MIXING: torch.tensor(mixing, dtype=torch.float64)}, loss=sum(losses) / len(losses))


def mixture(w: Weights, v: Weights, mixing: float, names: Weights) -> Weights:
    """Return ``a * v + (1 - a) * w`` of the weights that are named."""
    return {name: torch.lerp(w[name], v[name].to(w[name]), mixing) for name in names}


def own_mixture(sent: Weights, kept: Weights) -> Weights:
    """Return a client's own mixture with the model that the edge sent; before it has one, the edge's.

    Running statistics are those of the mixture.
    """
    if not kept:
        return sent
    return {**{name: kept[name] for name in sent}, **mixture(sent, kept, float(kept[MIXING]), moved(sent))}


APFL_CLIENT = ClientHalf(rule=apfl_round, personal=own_mixture)

APFL = Algorithm(
    name="apfl",
    summary="FedAvg, and each client uses a mixture of that model and one of its own; the share is apfl.mixing.",
    make_edge=edge_of_halves(APFL_CLIENT, settings_sent),
    tiers="one or two",
    strategy_key="edge-strategy",
    client=APFL_CLIENT,
    passes=lambda own: 2,
    section=ApflSettings,
)
