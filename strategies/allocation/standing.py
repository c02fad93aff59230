"""What earlier rounds have shown of the clients: for solvers, and for what clients are worth."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, eq=False)
class Standing:
    """What an edge knows of its U clients before an edge round. All arrays have the shape ``(U,)``.

    Attributes
    ----------
    edge_round : int
        Number of the edge round, counted from 1 through all global rounds.
    clients : np.ndarray
        Numbers of the clients.
    examples : np.ndarray
        Examples of a local round.
    loss : np.ndarray
        Mean training loss of the last round that the client took part in; NaN before.
    age : np.ndarray
        Edge rounds since the client was selected last: 1 after a round in which it was. For one that never was,
        `edge_round`.
    joules : np.ndarray
        What it has spent so far.
    battery_joules : np.ndarray
        What is left of its battery; infinite without one.
    battery_share : np.ndarray
        The same as a share of a full one, from 0 to 1; 1 without one.
    accuracy : np.ndarray
        Accuracy of the last model that the client evaluated, on its own test examples; NaN before.
    """

    edge_round: int
    clients: np.ndarray
    examples: np.ndarray
    loss: np.ndarray
    age: np.ndarray
    joules: np.ndarray
    battery_joules: np.ndarray
    battery_share: np.ndarray
    accuracy: np.ndarray


def nothing_known(num_clients: int) -> Standing:
    """Return the standing of clients before their first edge round, numbered in their order, with an example each."""
    return Standing(
        edge_round=1,
        clients=np.arange(num_clients),
        examples=np.ones(num_clients),
        loss=np.full(num_clients, np.nan),
        age=np.ones(num_clients, dtype=np.int64),
        joules=np.zeros(num_clients),
        battery_joules=np.full(num_clients, np.inf),
        battery_share=np.ones(num_clients),
        accuracy=np.full(num_clients, np.nan),
    )
