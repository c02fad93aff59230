"""Learning rates that change from global round to global round."""

from collections.abc import Callable
from dataclasses import dataclass
from math import cos, pi

from espalier.app.settings.sections import TrainSettings


@dataclass(frozen=True)
class CosineSchedule:
    """Half a cosine over the global rounds (SGDR without restarts, arXiv:1608.03983, eq. 5, with a least rate of 0).

    Parameters
    ----------
    global_rounds : int
        Of the run, T.
    edge_rounds : int
        Rounds of a client in a global round.
    """

    global_rounds: int
    edge_rounds: int

    def __call__(self, rate: float, server_round: int) -> float:
        """Return the rate in a client's round, from that of the first: ``rate / 2 * (1 + cos(pi * (t - 1) / T))``."""
        over = min((server_round - 1) // self.edge_rounds, self.global_rounds - 1)
        return rate * (1 + cos(pi * over / self.global_rounds)) / 2


def schedule_of(train: TrainSettings, global_rounds: int, edge_rounds: int) -> Callable[[float, int], float] | None:
    """Return the learning rate by that of the first round and the round; None: it is the same in all.

    Parameters
    ----------
    train : TrainSettings
        Section of the run config.
    global_rounds : int
        Of the run.
    edge_rounds : int
        Rounds of a client in a global round.
    """
    if train.schedule == "constant":
        return None
    return CosineSchedule(global_rounds, edge_rounds)
