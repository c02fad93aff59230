"""FedNova: what clients learned per step, times a common number of steps (arXiv:2007.07481), whole or at edges."""

from collections.abc import Mapping

import torch

from espalier.app.algorithms.algorithm import Algorithm
from espalier.app.algorithms.strategies import edge_of_halves
from espalier.clients.half import ClientHalf
from espalier.clients.shared.correction import Weights
from espalier.clients.shared.local_round import Begun, Done, LocalRound, Pass
from espalier.strategies import EdgeHalf, Gathered

GRADIENTS = "fednova-gradients"


def gradients_in(steps: int, momentum: float = 0.0, shrinking: float = 0.0) -> float:
    """Return the sum of the coefficients of a round's gradients in ``(x - x_i) / eta``, the paper's ``||a_i||_1``.

    Parameters
    ----------
    steps : int
        Steps of SGD, from a buffer of zeros.
    momentum : float (default: 0.0)
        SGD's.
    shrinking : float (default: 0.0)
        ``eta * mu`` of a proximal term in the loss, which momentum sees as it sees the gradient.
    """
    of_step, total = 0.0, 0.0
    for _ in range(steps):
        of_step = momentum * of_step + 1 - shrinking * total
        total += of_step
    return total


def fednova_round(begun: Begun) -> LocalRound:
    """Train, and tell how many gradients are in the change of the model."""
    learned = yield Pass()
    shrinking = learned.pull * learned.path / learned.steps
    told = torch.tensor(gradients_in(learned.steps, learned.momentum, shrinking), dtype=torch.float64)
    return Done(learned.weights, told={GRADIENTS: told})


class Normalised(EdgeHalf):
    """Averages models as if each client's change had the mean number of gradients in it (eq. 9).

    That is ``x - tau_eff * sum p_i * (x - x_i) / A_i`` with ``tau_eff = sum p_i * A_i``, where the strategy is FedAvg.
    """

    def averaged(self, gathered: Gathered) -> Mapping[int, Weights]:
        """Return models whose changes are scaled; who tells no positive number is left out."""
        told = {n: float(own[GRADIENTS]) for n, own in gathered.told.items() if GRADIENTS in own}
        told = {n: count for n, count in told.items() if count > 0}
        share = sum(gathered.shares[n] for n in told) or 1.0
        mean = sum(gathered.shares[n] * count for n, count in told.items()) / share
        x = gathered.start
        return {
            n: {name: x[name] + mean / count * (w - x[name]) for name, w in gathered.models[n].items()}
            for n, count in told.items()
        }


FEDNOVA_CLIENT = ClientHalf(rule=fednova_round)

FEDNOVA = Algorithm(
    name="fednova",
    summary="FedAvg of changes per step, so that clients of many steps do not weigh more, at every edge.",
    make_edge=edge_of_halves(FEDNOVA_CLIENT, lambda site: Normalised()),
    tiers="one or two",
    strategy_key="edge-strategy",
    takes_means=False,
    client=FEDNOVA_CLIENT,
    counts_gradients=True,
)
