"""pFedMe: a client's own model is drawn to the one that it sends, which follows it (arXiv:2006.08848)."""

from collections.abc import Mapping
from typing import Annotated

import torch
from pydantic import Field

from espalier.app.algorithms.algorithm import Algorithm, Site
from espalier.app.algorithms.ditto import own_model
from espalier.app.algorithms.strategies import edge_of_halves
from espalier.app.ground.errors import bad_value
from espalier.app.settings.section import Section
from espalier.clients.half import ClientHalf
from espalier.clients.shared.correction import Correction, Weights
from espalier.clients.shared.local_round import Begun, Done, LocalRound, Pass
from espalier.strategies import Gathered, SentNumbers

PULL, RATE, STEPS, BETA = "pfedme.pull", "pfedme.rate", "pfedme.steps", "pfedme.beta"


class PFedMeSettings(Section):
    """Of pFedMe."""

    name = "pfedme"

    pull: Annotated[float, Field(gt=0, le=1e6)] = 15.0
    """With [pFedMe](personal.md#pfedme): how strongly a client's own model is drawn to the one it sends (lambda)."""
    rate: Annotated[float, Field(gt=0, le=1e6)] = 0.005
    """The learning rate of the model that a client sends; that of its own is `learning-rate`."""
    steps: Annotated[int, Field(ge=1, le=1_000_000)] = 5
    """Steps of a client's own model on every mini-batch (the paper's K)."""
    beta: Annotated[float, Field(gt=0, le=1e6)] = 1.0
    """How far an edge goes to the average of what clients send; 1: all the way."""


def pfedme_round(begun: Begun) -> LocalRound:
    """For each mini-batch, bring `theta` near the minimum of its loss around `w`, then move `w` to it (Alg. 1)."""
    pull, rate, steps = float(begun.sent[PULL]), float(begun.sent[RATE]), int(begun.sent[STEPS])
    theta, w, losses = begun.start, begun.trained, list[float]()
    for number in range(begun.num_batches):
        learned = yield Pass(theta, Correction(pull=pull, anchor=w), batches=(number,) * steps)
        theta = learned.weights
        w = {name: torch.lerp(own.to(theta[name]), theta[name], rate * pull) for name, own in w.items()}
        losses.append(learned.loss)
    return Done({**theta, **w}, kept=theta, loss=sum(losses) / len(losses))


class Towards(SentNumbers):
    """Sends the settings, and goes to the average by `pfedme.beta` of the way."""

    def averaged(self, gathered: Gathered) -> Mapping[int, Weights]:
        """Return ``(1 - beta) * x + beta * w_i``, as is then their average."""
        beta, x = float(self.numbers[BETA]), gathered.start
        if beta == 1:
            return gathered.models
        return {
            n: {name: torch.lerp(x[name], w, beta) for name, w in own.items()} for n, own in gathered.models.items()
        }


PFEDME_CLIENT = ClientHalf(rule=pfedme_round, personal=own_model, pulls=True)


def steps_of(own: Section | None) -> int:
    """Return `pfedme.steps`."""
    assert isinstance(own, PFedMeSettings)
    return own.steps


def towards(site: Site) -> Towards:
    """Return the half of an edge; UserError if clients' models would go beyond their own."""
    own = site.own
    assert isinstance(own, PFedMeSettings)
    if own.rate * own.pull >= 1:
        raise bad_value(RATE, own.rate, f"less than 1 / {PULL} = {1 / own.pull:g}")
    return Towards(own.as_dict())


PFEDME = Algorithm(
    name="pfedme",
    summary="Each client's own model is drawn to the one that it sends, which follows it; see pfedme.pull.",
    make_edge=edge_of_halves(PFEDME_CLIENT, towards),
    tiers="one or two",
    strategy_key="edge-strategy",
    client=PFEDME_CLIENT,
    passes=steps_of,
    section=PFedMeSettings,
)
