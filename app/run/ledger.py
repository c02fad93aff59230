"""The ledger: how much memory and arithmetic a round of training takes of a client and of its edge, by a trial."""

import weakref
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from espalier.app.config.parse import parse_config
from espalier.app.features.feature import Scene
from espalier.app.run.travelling import travelling_weights
from espalier.app.tasks.node import parse_node
from espalier.app.wiring.clients import ClientTasks
from espalier.app.wiring.edges import one_edge
from espalier.app.wiring.one_server import Assembled, checked_task
from espalier.clients.client_app import make_client_app
from espalier.clients.shared.arrays import to_record, to_weights
from espalier.clients.shared.tensor_array import TensorArray, record_by_reference
from espalier.sim.in_process_grid import InProcessGrid
from espalier.strategies.exchange import Exchanges, converse
from espalier.strategies.profiles import clients_by_node
from espalier.strategies.views import MemberGrid


@dataclass(frozen=True)
class Ledger:
    """What a round of training takes.

    Parameters
    ----------
    client_peak_bytes : int
        The most that the tensors of a client's training took at once: what it has received, its copies of blocks,
        gradients, the optimizer's state, activations. Its data, and the model that was there before, are not in it.
    edge_peak_bytes : int
        Likewise of the edge, with all that it has received from its clients at a time.
    client_flops, edge_flops : int
        Floating-point operations of products and convolutions: those of the client with the most, and of the edge.
    """

    client_peak_bytes: int
    edge_peak_bytes: int
    client_flops: int
    edge_flops: int


class Side(TorchDispatchMode):
    """A client, or the edge, whose work is measured while it is inside.

    Attributes
    ----------
    now, most : int
        Bytes of tensors made inside that are still alive: now, and at the peak.
    flops : int
        Floating-point operations, as PyTorch counts them.
    """

    def __init__(self) -> None:
        super().__init__()
        self.now = self.most = self.flops = 0
        self._known: set[int] = set()  # storages that are there, by their Python id, which lives as long as they do

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Carry out an operation, and count what it has allocated and computed."""
        for tensor in tree_leaves((args, kwargs)):
            self._note(tensor, is_new=False)
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            self._note(tensor, is_new=True)
        if count := flop_registry.get(func.overloadpacket):
            self.flops += count(*args, **(kwargs or {}), out_val=result)
        return result

    def _note(self, value: object, *, is_new: bool) -> None:
        if not isinstance(value, torch.Tensor):
            return
        storage = value.untyped_storage()
        if (key := id(storage)) in self._known:
            return
        size = storage.nbytes() if is_new else 0
        self._known.add(key)
        self.now += size
        self.most = max(self.most, self.now)
        weakref.finalize(storage, self._freed, key, size)

    def _freed(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.now -= size


def ledger_of(settings: Mapping[str, Any], federation: Assembled) -> Ledger:
    """Return what a round takes of an edge of a run and of its clients.

    They are made anew and train for one round, by messages that are copied as on a network; the run notices nothing.

    Parameters
    ----------
    settings : Mapping[str, Any]
        Of the run, by their keys.
    federation : Assembled
        Its clients; those of the first edge are tried.
    """
    plain = {"engine": "in-process", "stack": 0, "workers": 1}
    plain |= {"split.execution": "messages", "split.transport": "messages"}
    config = parse_config({**settings, **plain})
    (task, model), tasks = checked_task(config), ClientTasks(config)
    (name, members), *_ = federation.hierarchical.topology.items()
    client_of = clients_by_node(federation.profiles)
    of_edge, sides = Side(), {node_id: Side() for node_id in members}
    app = make_client_app(lambda context: tasks.of(parse_node(context.node_config)), durable=False)

    def measured_client(message: Message, context: Context) -> Message:
        with sides[context.node_id]:
            return app(received(message), context)

    grid = InProcessGrid(
        measured_client,
        len(members),
        run_config=config.as_dict(),
        node_configs=[{"partition-id": client_of[n], "num-partitions": len(federation.profiles)} for n in members],
        node_ids=members,
        seed=config.seed,
    )
    scene = Scene(config, federation.profiles, {name: members}, None, model)
    edge = one_edge(scene, task, model, (), None).edges[name]
    arrays = to_record(to_weights(travelling_weights(config.algorithm, config.split, config.seed, task, model)))
    view = MemberGrid(grid, members)
    converse(grid, {name: _measured(edge.train_round(1, arrays, ConfigRecord(), view), of_edge)})
    return Ledger(
        client_peak_bytes=max(side.most for side in sides.values()),
        edge_peak_bytes=of_edge.most,
        client_flops=max(side.flops for side in sides.values()),
        edge_flops=of_edge.flops,
    )


def received(message: Message) -> Message:
    """Return a message whose tensors are the receiver's own, as those are that came over a network."""
    if not message.has_content():
        return message
    records = {
        name: record_by_reference({key: _copied(array) for key, array in record.items()})
        if isinstance(record, ArrayRecord)
        else record
        for name, record in message.content.items()
    }
    message.content = RecordDict(records)
    return message


def _copied(array: Any) -> Any:
    return TensorArray(array.values.clone()) if isinstance(array, TensorArray) else array


def _measured(conversation: Exchanges[Any], side: Side) -> Generator[Any, Any, Any]:
    """Run an edge's round, and measure what it does between messages."""
    answers = None
    while True:
        with side:
            try:
                step = conversation.send(answers)
            except StopIteration as over:
                return over.value
        answers = yield step
        with side:
            answers = [received(reply) for reply in answers]
