"""The updates that an edge gets of clients, through the project's own client, and what they were made of."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from flwr.app import Context
from torch import Tensor

from espalier.app.config.parse import parse_config
from espalier.app.features.compression import codec_of_clients
from espalier.app.wiring.clients import client_task
from espalier.app.wiring.task_of_run import build_task
from espalier.clients.client_app import make_client_app
from espalier.clients.messages.train import Train, model_in_reply
from espalier.clients.shared.arrays import to_record, to_weights
from espalier.clients.shared.compression import decompressed
from espalier.clients.shared.compression.updates import COMPRESSED
from espalier.clients.task import ClientTask, Examples
from espalier.sim.in_process_grid import InProcessGrid

Weights = Mapping[str, Tensor]
LAST_ROUND = 400  # where no client's mini-batches have the size that is looked for


@dataclass(frozen=True)
class Victim:
    """A client's round.

    Parameters
    ----------
    task : ClientTask
        The client's, as it would be without anybody who looks.
    before, after : Mapping[str, Tensor]
        The model that the edge sent, and what it got.
    batches : tuple[Tensor, ...]
        The mini-batches, as indices of training examples, which nobody is told.
    """

    task: ClientTask
    before: Weights
    after: Weights
    batches: tuple[Tensor, ...]

    @property
    def images(self) -> Tensor:
        """What it trained on, as pixels from 0 to 1, of shape (N, C, H, W)."""
        return pixels(self.task, torch.cat(self.batches))

    @property
    def labels(self) -> Tensor:
        """Their labels, of shape (N,)."""
        return self.task.train.labels[torch.cat(self.batches)]

    @property
    def update(self) -> dict[str, Tensor]:
        """How far each weight went."""
        return {name: self.after[name] - before for name, before in self.before.items()}


def pixels(task: ClientTask, indices: Tensor | slice = slice(None)) -> Tensor:
    """Return training images of a client as numbers from 0 to 1."""
    images: Tensor = task.train.inputs[indices]
    return images.to(torch.float32) / 255


class Watched:
    """A client's task that notes which examples it trains on; all else is as before.

    Parameters
    ----------
    task : ClientTask
        The task.

    Attributes
    ----------
    batches : list[Tensor]
        Indices of each mini-batch so far; may be emptied.
    noting : ClientTask
        The task that notes.
    """

    def __init__(self, task: ClientTask) -> None:
        self.task = task
        self.batches: list[Tensor] = []
        numbered = Examples((task.train.inputs, torch.arange(len(task.train))), task.train.labels)
        self.noting = replace(task, train=numbered, prepare=self._prepare)

    def _prepare(self, numbered: tuple[Tensor, Tensor]) -> Any:
        inputs, indices = numbered
        self.batches.append(indices.clone())
        return self.task.prepare(inputs)


def rounds_of(run_config: Mapping[str, Any]) -> Iterator[Victim]:
    """Return what an edge gets of each client, client after client and round after round, always of the first model.

    Parameters
    ----------
    run_config : Mapping[str, Any]
        Settings of a run by their keys, of an algorithm whose clients train whole models.
    """
    config = parse_config(dict(run_config))
    watched: dict[int, Watched] = {}

    def load(context: Context) -> ClientTask:
        client = int(context.node_config["partition-id"])
        if client not in watched:
            watched[client] = Watched(client_task(context))
        return watched[client].noting

    grid = InProcessGrid(
        make_client_app(load, durable=False),
        config.federation.num_clients,
        run_config=config.as_dict(),
        seed=config.seed,
    )
    arrays = to_record(build_task(config).new_model().state_dict())
    codec = codec_of_clients(config)
    for number in range(1, LAST_ROUND):
        for node in grid.get_node_ids():
            (reply,) = grid.send_and_receive([Train(arrays, number).to_message(node)])
            update = reply.content.array_records.pop(COMPRESSED, None)
            _, model = model_in_reply(reply.content)
            if codec is not None and update is not None:
                model = decompressed(codec, model, update, arrays)
            for own in watched.values():
                if own.batches:  # it has trained just now, and not on empty samples alone
                    yield Victim(own.task, to_weights(arrays), to_weights(model), tuple(own.batches))
                    own.batches.clear()
