"""A small federation whose clients mask what they send, and can drop out at any message."""

from dataclasses import replace

from flwr.serverapp.strategy import FedAvg

from espalier.clients.client_app import make_client_app
from espalier.clients.half import ClientHalf
from espalier.clients.secure.handlers import SecureClient
from espalier.clients.shared.secure.terms import SecureTerms
from espalier.sim.in_process_grid import InProcessGrid
from espalier.strategies.secure import SecureAggregation
from tests.strategies.split.federation import ANY, Federation

TERMS = SecureTerms()
SIZES = (20, 33, 14, 40, 27)
MOST = max(SIZES)


def secure_federation(terms=TERMS, *, half=None, sizes=SIZES, **options):
    """Return a `Federation` of clients with secure aggregation."""
    federation, client = Federation(sizes=sizes), SecureClient(terms, **options)
    half = half or ClientHalf()
    half = replace(half, handlers={**half.handlers, **client.handlers})
    federation.tasks = [replace(task, half=half, outgoing=[client]) for task in federation.tasks]
    return federation


def fedavg(name, size):
    """Return an edge's strategy."""
    return FedAvg(**ANY)


def secure(make_edge=fedavg, terms=TERMS, most_weight=MOST):
    """Return what makes edges with secure aggregation, of what makes those inside."""
    return lambda name, size: SecureAggregation(make_edge(name, size), terms, most_weight)


def failing_grid(federation, gone, *, seen=None, change=None, node_configs=None):
    """Return a Grid on which client i fails at messages of the types `gone[i]`.

    `change` may change what a client gets, and `seen` what it answers.
    """
    app = make_client_app(federation.load)

    def answer(message, context):
        client = int(context.node_config["partition-id"])
        if message.metadata.message_type in gone.get(client, ()):
            raise ValueError("its battery is empty")
        if change is not None:
            change(client, message)
        reply = app(message, context)
        if seen is not None:
            seen(client, message, reply)
        return reply

    return InProcessGrid(answer, len(federation.sizes), node_configs=node_configs)
