"""FedRep: each client trains its head for the body that it got, then the body for this head (arXiv:2102.07078)."""

from typing import Annotated

from pydantic import Field

from espalier.app.algorithms.algorithm import Algorithm
from espalier.app.algorithms.fedper import head_names
from espalier.app.algorithms.strategies import edge_of_halves, settings_sent
from espalier.app.settings.section import Section
from espalier.clients.half import ClientHalf
from espalier.clients.shared.local_round import Begun, Done, LocalRound, Pass


class FedRepSettings(Section):
    """Of FedRep."""

    name = "fedrep"

    head_epochs: Annotated[int, Field(ge=1, le=1_000_000)] = 10
    """With [FedRep](personal.md#fedrep): epochs of a client's head in every round. The body then has `local-epochs`."""


def fedrep_round(begun: Begun) -> LocalRound:
    """Train the head with the body frozen, then the body with the new head frozen (Alg. 1)."""
    body = [name for name in begun.trained if name not in begun.own]
    with_head = yield Pass(trains=begun.own, epochs=int(begun.sent["fedrep.head-epochs"]))
    learned = yield Pass(with_head.weights, trains=body)
    return Done(learned.weights)


FEDREP_CLIENT = ClientHalf(rule=fedrep_round, stays=head_names)

FEDREP = Algorithm(
    name="fedrep",
    summary="Personal heads: in every round a client's head trains first, then the body, which alone is averaged.",
    make_edge=edge_of_halves(FEDREP_CLIENT, settings_sent),
    tiers="one or two",
    strategy_key="edge-strategy",
    client=FEDREP_CLIENT,
    section=FedRepSettings,
)
