"""An edge that moves its model along its clients' accumulated gradients (RawHFL, eq. 15)."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord

from espalier.clients.messages.train import NUM_EXAMPLES, TRAIN_LOSS, AccumulatedGradient, TrainAccumulated
from espalier.clients.shared.statistics import is_statistic

from .edge_base import Edge
from .exchange import Exchanges
from .guards.updates import UpdateGuard, guard_state, load_guard_state
from .outcomes import Evaluation, Update
from .running_statistics import with_possible_variances
from .screening import screen
from .strategy_edge import StrategyEdge
from .views import MemberGrid


@dataclass
class Arrivals:
    """Estimates p_sc of eq. 15, the probability that a result arrives, from those of an edge's rounds before.

    It is ``(arrived + 1) / (asked + 1)``: 1 as long as everything arrives, and never 0.

    Parameters
    ----------
    asked, arrived : int (default: 0)
        Results so far.
    """

    asked: int = 0
    arrived: int = 0

    @property
    def probability(self) -> float:
        """The estimate."""
        return (self.arrived + 1) / (self.asked + 1)

    def note(self, asked: int, arrived: int) -> None:
        """Count the results of a round."""
        self.asked += asked
        self.arrived += arrived

    def load(self, state: Mapping[str, Any]) -> None:
        """Take back what ``vars`` returned; ValueError for what can't be."""
        asked, arrived = state["asked"], state["arrived"]
        if type(asked) is not int or type(arrived) is not int or not 0 <= arrived <= asked:
            raise ValueError(f"arrivals: {arrived} of {asked} results can't have arrived")
        self.asked, self.arrived = asked, arrived


class AccumulatedGradients(Edge):
    """``w <- w - eta * sum_u alpha_u g_u / p_sc`` with alpha_u = 1/Z over the Z clients that were asked.

    Where more were asked than are wanted, as some may be late, Z is the number that is wanted.

    With plain SGD and the clients' learning rate this is the plain average of the clients' models. The gradient of a
    client that fails or is late counts as zero: Z is not made smaller by it, and an edge without any gradient keeps its
    model. All edges weigh the same at the cloud (alpha_b = 1/B), that one too.

    p_sc is 1 unless there are `arrivals`. Then steps are as long, in the mean, as if every result arrived, provided
    that who is late has the same gradients as the rest: after n results that arrive with probability p, the mean step
    is short by the share ``(1 - p)^(n + 1)``.

    Parameters
    ----------
    learning_rate : float
        eta, the clients' own.
    evaluation : StrategyEdge
        Evaluates the model on the clients.
    guard : UpdateGuard, optional (default: None)
        As for `StrategyEdge`.
    arrivals : Arrivals, optional (default: None)
        Estimates p_sc; None: it is 1.
    """

    weight_if_idle = 1.0
    is_guarded = True

    def __init__(
        self,
        learning_rate: float,
        evaluation: StrategyEdge,
        guard: UpdateGuard | None = None,
        arrivals: Arrivals | None = None,
    ) -> None:
        self.learning_rate = learning_rate
        self.evaluation = evaluation
        self.arrivals = arrivals
        self.guard = guard

    def train_round(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: MemberGrid
    ) -> Exchanges[Update]:
        """Ask all nodes for their accumulated gradients and step."""
        if self.guard is not None:
            self.guard.begin_round(grid.terms.local_rounds)
        clients = grid.get_node_ids()
        instruction = TrainAccumulated(arrays, server_round, config)
        messages = [instruction.to_message(n) for n in clients]
        screened, failures = screen(messages, (yield messages), NUM_EXAMPLES, least={TRAIN_LOSS: -math.inf})
        if self.guard is not None:
            screened, beyond = self.guard.keep_within(messages, screened, self.learning_rate)
            failures += beyond
        replies = {
            n: AccumulatedGradient.from_content(reply.content)
            for n, reply in zip(clients, screened, strict=True)
            if not reply.has_error()
        }
        wanted = len(clients) if grid.terms.wanted is None else max(len(replies), min(grid.terms.wanted, len(clients)))
        probability = 1.0 if self.arrivals is None else self.arrivals.probability
        if self.arrivals is not None:
            self.arrivals.note(wanted, len(replies))
        if not replies:
            return Update(arrays, weight=self.weight_if_idle, failures=failures)
        gradients = [reply.gradient for reply in replies.values()]
        losses = [reply.train_loss for reply in replies.values()]
        return Update(
            step(arrays, gradients, self.learning_rate, wanted, probability),
            MetricRecord({TRAIN_LOSS: sum(losses) / len(losses)}),
            self.weight_if_idle,
            list(replies),
            failures,
            losses=dict(zip(replies, losses, strict=True)),
        )

    def evaluate_round(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: MemberGrid
    ) -> Exchanges[Evaluation]:
        """Evaluate the model on the clients."""
        return self.evaluation.evaluate_round(server_round, arrays, config, grid)

    def state_dict(self) -> dict[str, Any]:
        """Return what must survive an interruption."""
        arrivals = {} if self.arrivals is None else {"arrivals": {**vars(self.arrivals)}}
        return {"evaluation": self.evaluation.state_dict(), **guard_state(self.guard), **arrivals}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what `state_dict` returned."""
        self.evaluation.load_state_dict(state["evaluation"])
        load_guard_state(self.guard, state)
        if self.arrivals is not None:
            self.arrivals.load(state["arrivals"])


def step(
    arrays: ArrayRecord,
    gradients: list[ArrayRecord],
    learning_rate: float,
    num_clients: int,
    probability: float = 1.0,
) -> ArrayRecord:
    """Return the model after eq. 15, summed in the order of `gradients`.

    What has no gradient is not divided by p_sc, which would carry it beyond what any client has: statistics, such as
    BatchNorm's variances, integers, which move by their mean difference, and truth values, which change where
    more than half of those wanted say so.
    """
    result = ArrayRecord()
    for name, array in arrays.items():
        weights = torch.from_numpy(array.numpy())
        rate = learning_rate if is_statistic(name) else learning_rate / probability
        rate = rate if weights.is_floating_point() else 1.0
        exact = weights if weights.is_floating_point() else weights.double()
        total = sum(torch.from_numpy(gradient[name].numpy()).to(exact.dtype) for gradient in gradients)
        moved = exact - rate / num_clients * total
        moved = moved.abs() if weights.dtype == torch.bool else moved  # 0 becomes 1 where all say that it changed
        result[name] = Array((moved if weights.is_floating_point() else moved.round().to(weights.dtype)).numpy())
    return with_possible_variances(result)
