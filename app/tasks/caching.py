"""The video-caching task: model, data and client tasks for a run config (RawHFL)."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import lru_cache
from hashlib import sha256

import numpy as np
import torch
from torch import Tensor, nn

from espalier.app.config.sections import RunConfig
from espalier.app.tasks.caching_data import CachingData, caching_clients, caching_mlp, num_slots
from espalier.app.tasks.common import compute_device, local_training
from espalier.app.tasks.node import Node
from espalier.clients.task import ClientTask, Examples
from espalier.clients.unique_rows import unique_row_sgd

NUM_CONTENTS = 256
TOP_M = tuple(range(1, 11))
MANY_BATCHES = 500  # collapsed together: the memory for it grows with them


def client_data(config: RunConfig) -> list[CachingData]:
    """Return every client's data: enough slots to train on for all rounds, and those to test on behind them."""
    train_slots = num_slots(
        config.federation.global_rounds * config.federation.edge_rounds,
        initial_slots=config.caching.initial_slots,
        slots_per_edge_round=config.caching.slots_per_edge_round,
    )
    return _client_data(
        config.seed,
        config.federation.num_clients,
        train_slots,
        config.caching.exploitation.ends,
        config.caching.similar,
    )


@lru_cache(maxsize=1)
def _client_data(
    seed: int, num_clients: int, train_slots: int, exploitation: tuple[float, float], similar: str
) -> list[CachingData]:
    return caching_clients(seed, num_clients, train_slots, exploitation=exploitation, similar=similar)  # type: ignore[arg-type]


def check_data(config: RunConfig) -> None:
    """Draw the clients' requests."""
    client_data(config)


def data_fingerprint(config: RunConfig) -> str:
    """Return a hash of what decides the data; a longer run has more of the same."""
    what = (config.seed, config.federation.num_clients, config.caching.exploitation.ends, config.caching.similar)
    return sha256(repr((what, config.caching.initial_slots, config.caching.slots_per_edge_round)).encode()).hexdigest()


def new_model(config: RunConfig) -> nn.Sequential:
    """Return the paper's network with the initial weights that the config's seed gives."""
    return caching_mlp(config.seed, num_contents=NUM_CONTENTS)


def input_shape(config: RunConfig) -> tuple[int, ...]:
    """Return the shape of a request's features."""
    return (new_model(config)[0][0].in_features,)


def test_examples(config: RunConfig) -> Examples:
    """Return the test examples of all clients; their inputs are rows of `pooled_table`."""
    pool = [data.test for data in client_data(config)]
    return Examples(_pooled_rows(config, pool), torch.cat([examples.labels for examples in pool]))


def pooled_table(config: RunConfig) -> Tensor:
    """Return the clients' tables of features, one under the other."""
    return torch.cat([data.table for data in client_data(config)])


def _pooled_rows(config: RunConfig, pool: list[Examples]) -> Tensor:
    """Return each example's row in the pooled table."""
    sizes = [0, *(len(data.table) for data in client_data(config))]
    return torch.cat([e.inputs + start for e, start in zip(pool, np.cumsum(sizes).tolist(), strict=False)])


def normaliser(config: RunConfig) -> Callable[[Tensor], Tensor]:
    """Return the function from rows of the pooled table to features."""
    return _rows_of(pooled_table(config).to(compute_device(config)))


def _rows_of(table: Tensor) -> Callable[[Tensor], Tensor]:
    return lambda rows: table[rows]


def examples_available(config: RunConfig, slots: Tensor, edge_rounds_per_round: int) -> Callable[[int], int]:
    """Return the function from a round, counted from 1, to the number of examples there are when it begins.

    Parameters
    ----------
    config : RunConfig
        The run.
    slots : Tensor
        Increasing: the slot in which each example is complete.
    edge_rounds_per_round : int
        Edge rounds' worth of slots that pass in a round as the client counts them.
    """

    def available(server_round: int) -> int:
        now = num_slots(
            max(server_round - 1, 0) * edge_rounds_per_round,
            initial_slots=config.caching.initial_slots,
            slots_per_edge_round=config.caching.slots_per_edge_round,
        )
        return int(torch.searchsorted(slots, now))

    return available


def new_client_task(config: RunConfig, model: nn.Module, node: Node) -> ClientTask:
    """Return the task of one client, which works on `model`."""
    data = client_data(config)[node.partition_id]
    table = data.table.to(compute_device(config))
    return ClientTask(
        model=model,
        train=data.train,
        test=data.test,
        prepare=_rows_of(table),
        training=local_training(config),
        seed=config.seed,
        partition_id=node.partition_id,
        class_counts=tuple(torch.bincount(data.train.labels, minlength=NUM_CONTENTS).tolist()),
        device=compute_device(config),
        edge_name=node.edge_name,
        available=examples_available(config, data.train_slots, config.federation.edge_rounds if config.is_flat else 1),
        top_m=TOP_M,
        sgd=_sgd_on(table),
    )


def centralised_task(config: RunConfig) -> ClientTask:
    """Return the task of one client that has all the data.

    In a global round it makes as many mini-batches as all clients together would by `local-epochs`, over all edge
    rounds.
    """
    clients, training = client_data(config), local_training(config)
    slots = torch.cat([data.train_slots for data in clients])
    in_time = slots.argsort(stable=True)
    pool = [data.train for data in clients]
    labels = torch.cat([examples.labels for examples in pool])[in_time]
    table = pooled_table(config).to(compute_device(config))
    return ClientTask(
        model=new_model(config).to(compute_device(config)),
        train=Examples(_pooled_rows(config, pool)[in_time], labels),
        test=test_examples(config),
        prepare=_rows_of(table),
        training=replace(
            training,
            batches_per_epoch=training.batches_per_epoch
            * config.federation.num_clients
            * config.federation.edge_rounds,
        ),
        seed=config.seed,
        partition_id=0,
        class_counts=tuple(torch.bincount(labels, minlength=NUM_CONTENTS).tolist()),
        device=compute_device(config),
        available=examples_available(config, slots[in_time], config.federation.edge_rounds),
        top_m=TOP_M,
        sgd=_sgd_on(table),
    )


def _sgd_on(table: Tensor) -> Callable[[nn.Module, Examples, Iterable[Tensor], float], float]:
    """Return SGD that works on the distinct rows of features of each mini-batch."""

    def sgd(model: nn.Module, examples: Examples, batches: Iterable[Tensor], learning_rate: float) -> float:
        rows, labels = examples.inputs.to(table.device), examples.labels.to(table.device)
        loss, seen, taken = 0.0, 0, list(batches)
        for start in range(0, len(taken), MANY_BATCHES):
            some = taken[start : start + MANY_BATCHES]
            count = sum(map(len, some))
            loss += count * unique_row_sgd(model, table, rows, labels, some, learning_rate)
            seen += count
        return loss / max(seen, 1)

    return sgd
