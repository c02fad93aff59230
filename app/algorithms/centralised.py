"""Centralised SGD, the upper bound: all data in one place."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, MetricRecord

from espalier.app.algorithms.algorithm import Algorithm, Site
from espalier.app.algorithms.strategies import fedavg_of_all
from espalier.app.tasks.common import on_device_if_it_fits, room_for_examples
from espalier.app.tasks.recording import gradients_of
from espalier.clients.messages.train import TRAIN_LOSS
from espalier.clients.task import ClientTask
from espalier.clients.whole.training import local_sgd
from espalier.strategies import Edge, Evaluation, Failure, StrategyEdge, Update
from espalier.strategies.exchange import Exchanges
from espalier.strategies.outcomes import EVERYBODY
from espalier.strategies.views import MemberGrid


class CentralisedEdge(Edge):
    """An edge that has all the data: it trains without a message and is evaluated on the clients as ever.

    Parameters
    ----------
    task : ClientTask
        Holds the whole training pool.
    evaluation : StrategyEdge
        Evaluates the model on the clients.
    """

    def __init__(self, task: ClientTask, evaluation: StrategyEdge) -> None:
        self._task = task
        self._evaluation = evaluation

    def train_round(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: MemberGrid
    ) -> Exchanges[Update]:
        """Train on the pool, without an exchange."""
        yield from ()
        if self._task.num_train(server_round) == 0:
            return Update(failures=[Failure(EVERYBODY, "there are no training examples yet")])
        model = self._task.model
        model.load_state_dict(arrays.to_torch_state_dict())
        loss = local_sgd(self._task, server_round)
        return Update(ArrayRecord(model.state_dict()), MetricRecord({TRAIN_LOSS: loss}), float(len(self._task.train)))

    def evaluate_round(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: MemberGrid
    ) -> Exchanges[Evaluation]:
        """Evaluate the model on the clients."""
        return self._evaluation.evaluate_round(server_round, arrays, config, grid)

    def state_dict(self) -> dict[str, Any]:
        """Return nothing: the optimizer is fresh in every round, as a client's is."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what `state_dict` returned."""


def all_data_in_one_place(site: Site) -> CentralisedEdge:
    """Return the edge that has all the data."""
    task = site.task.centralised_task()
    task = replace(task, gradients=gradients_of(site.train, task.device))
    return CentralisedEdge(on_device_if_it_fits(task, room_for_examples(task.device))[0], fedavg_of_all())


CENTRALISED = Algorithm(
    name="centralised",
    summary="All data in one place, for comparison.",
    make_edge=all_data_in_one_place,
    tiers="one",
    trains_clients=False,
    averages=False,
)
