"""What secure aggregation costs a client and its edge in an edge round, beside plain averaging.

``python -m benchmarks.secure_aggregation`` prints, for 4, 16 and 64 clients of an edge and a model of 100,000 numbers,
the bytes to and from a client, and the CPU seconds of a client and of the edge, without any training. The last rows are
of rounds in which one client in eight drops out after the keys were exchanged: then masks are made again.
"""

import logging
import time
from collections import Counter

import torch
from flwr.app import ArrayRecord, Context, Message
from flwr.serverapp.strategy import FedAvg

from espalier.app.meters.bytes import payload_bytes
from espalier.clients.messages.train import TRAIN, Trained
from espalier.clients.secure.handlers import SecureClient
from espalier.clients.shared.arrays import to_record
from espalier.clients.shared.secure.terms import SecureTerms
from espalier.clients.shared.tensor_array import record_by_reference
from espalier.sim import InProcessGrid
from espalier.strategies import Hierarchical, StrategyEdge
from espalier.strategies.secure import SecureAggregation

NUMBERS = 100_000
ANY = {"min_train_nodes": 1, "min_evaluate_nodes": 1, "min_available_nodes": 1}


class Clients:
    """Clients that have trained already; how long they take, and what comes and goes, is counted."""

    def __init__(self, secure: SecureClient | None, dropping: int) -> None:
        self.secure, self.dropping = secure, dropping
        self.seconds, self.bytes = 0.0, Counter[str]()

    def __call__(self, message: Message, context: Context) -> Message:
        """Answer a message."""
        started = time.process_time()
        kind, client = message.metadata.message_type, int(context.node_config["partition-id"])
        self.bytes["down"] += sum(payload_bytes(kind, message.content).values())
        if kind == TRAIN and client < self.dropping:
            raise ValueError("it dropped out")
        if kind == TRAIN:
            draws = torch.Generator().manual_seed(client)
            model = to_record({"w": torch.randn(NUMBERS, generator=draws)})
            reply = Message(Trained(model, 1.0, 100).to_content(), reply_to=message)
            started = time.process_time()  # a plain client has no more to do
            reply = self.secure(reply, message, context, None) if self.secure else reply  # type: ignore[arg-type]
        else:
            assert self.secure is not None
            reply = self.secure.handlers[kind](message, context, None)  # type: ignore[arg-type]
        self.bytes["up"] += sum(payload_bytes(kind, reply.content).values())
        self.seconds += time.process_time() - started
        return reply


def measured(clients: int, terms: SecureTerms | None, dropping: int = 0) -> tuple[float, float, float, float]:
    """Return the bytes down and up, and the CPU seconds, of a client in an edge round, and the seconds of its edge."""
    app = Clients(None if terms is None else SecureClient(terms), dropping)
    grid = InProcessGrid(app, clients)

    def make_edge(name: str, size: int) -> StrategyEdge | SecureAggregation:
        edge = StrategyEdge(FedAvg(fraction_evaluate=0.0, **ANY))
        return edge if terms is None else SecureAggregation(edge, terms, 100)

    top = FedAvg(fraction_evaluate=0.0, **ANY)
    hierarchical = Hierarchical(top, make_edge, {"edge": list(grid.get_node_ids())})
    arrays = record_by_reference(ArrayRecord({"w": torch.zeros(NUMBERS)}))
    started = time.process_time()
    (outcome,) = hierarchical.rounds(grid, arrays, 1)
    seconds = time.process_time() - started
    (update,) = outcome.edges["edge"].updates
    assert len(update.participants) == clients - dropping, update.failures
    return app.bytes["down"] / clients, app.bytes["up"] / clients, app.seconds / clients, seconds - app.seconds


def main() -> None:
    """Measure and print."""
    logging.disable(logging.WARNING)
    measured(4, SecureTerms())  # what is imported and compiled in the first round
    print(f"{'clients':>7}  {'averaging':28}{'KB down':>9}{'KB up':>9}{'client s':>10}{'edge s':>9}")
    rows: list[tuple[int, str, SecureTerms | None, int]] = []
    for clients in (4, 16, 64):
        rows += [(clients, "plain", None, 0), (clients, "secure, all neighbours", SecureTerms(), 0)]
        rows += [(clients, "secure, 16 neighbours", SecureTerms(neighbours=16), 0)] * (clients > 17)
    for clients in (16, 64):
        rows.append((clients, "secure, an eighth drops out", SecureTerms(), clients // 8))
    rows.append((64, "the same, 16 neighbours", SecureTerms(neighbours=16, threshold=0.5), 8))
    for clients, name, terms, dropping in rows:
        down, up, client, edge = measured(clients, terms, dropping)
        print(f"{clients:7}  {name:28}{down / 1e3:9.1f}{up / 1e3:9.1f}{client:10.4f}{edge:9.3f}")


if __name__ == "__main__":
    main()
