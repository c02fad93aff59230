"""The video-caching task: to predict which content a UE will ask for next (RawHFL, section V-A).

An example is made of two requests of one UE that follow on each other: the features of the first, and the content of
the second as its label. Since a UE's features depend on nothing but the content, its many examples have few distinct
rows of features: they are kept once, in a table, and an example's input is its row number.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from espalier.clients.shared.generators import seeded_torch
from espalier.clients.task import Examples
from espalier.sim.requests import Catalogue, Habits, Requests, Similar, draw_habits, make_catalogue, make_requests

INITIAL_SLOTS = 100
# Section V-A has one: 150 s lie between two slots, and an edge round takes 150 s; Fig. 3 allows several.
# With 1, 4 or 10 a federated model is right as often as v_u after about as many rounds; with 4 the least active UE has
# about 20 examples in the first edge round and 340 in the 400th.
SLOTS_PER_EDGE_ROUND = 4
TEST_SLOTS = 2400


@dataclass(frozen=True)
class CachingData:
    """What one UE learns from and is tested on.

    Attributes
    ----------
    table : Tensor
        Shape (R, 43), float32: the distinct rows of features. ``prepare = table.__getitem__`` makes a `ClientTask`
        understand the inputs below.
    train : Examples
        Inputs: shape (N,), int64 rows of `table`. Labels: the contents asked for next. In order of time.
    train_slots : Tensor
        Shape (N,), int64, increasing: the slot in which the label of a training example was asked for.
    test : Examples
        Of the same form; all of its requests come after those of `train`.
    """

    table: Tensor
    train: Examples
    train_slots: Tensor
    test: Examples


def num_slots(
    edge_rounds: int, *, initial_slots: int = INITIAL_SLOTS, slots_per_edge_round: int = SLOTS_PER_EDGE_ROUND
) -> int:
    """Return how many slots have passed after a number of edge rounds; both start from slot 0."""
    for name, value in (
        ("edge_rounds", edge_rounds),
        ("initial_slots", initial_slots),
        ("slots_per_edge_round", slots_per_edge_round),
    ):
        if value < 0:
            raise ValueError(f"{name} = {value!r}: allowed is an integer >= 0")
    return initial_slots + slots_per_edge_round * edge_rounds


def caching_clients(
    seed: int,
    num_clients: int,
    train_slots: int,
    *,
    test_slots: int = TEST_SLOTS,
    exploitation: float | tuple[float, float] = (0.1, 0.8),
    similar: Similar = "most-similar",
) -> list[CachingData]:
    """Return the data of all UEs, with the paper's catalogue and habits.

    Parameters
    ----------
    seed : int
        Seed of the run, the only source of chance. A UE's requests do not depend on how many others there are.
    num_clients : int
        The number of UEs.
    train_slots : int
        Slots from 0 that the training examples come from, e.g. `num_slots` of all edge rounds.
    test_slots : int (default: 2400)
        Slots after them that the test examples come from. That makes 480 to 1920 per UE, with
        which the accuracy of a model that is right with probability v scatters over the UEs by 0.014, as in the paper's
        tables.
    exploitation : float or tuple[float, float] (default: (0.1, 0.8))
        v_u: a probability, or uniform between two.
    similar : "most-similar" or "most-similar-not-back" (default: "most-similar")
        How a UE chooses similar contents, see `espalier.sim.requests.make_requests`.

    Raises
    ------
    ValueError
        If a value is out of its range.
    """
    catalogue = make_catalogue(seed)
    clients = []
    for client in range(num_clients):
        habits = draw_habits(seed, client, exploitation=exploitation)
        requests = make_requests(seed, client, catalogue, habits, train_slots + test_slots, similar=similar)
        clients.append(caching_data(catalogue, habits, requests, train_slots))
    return clients


def caching_data(catalogue: Catalogue, habits: Habits, requests: Requests, train_slots: int) -> CachingData:
    """Turn one UE's requests into examples: those of the first `train_slots` slots to train on, the others to test on.

    Parameters
    ----------
    catalogue, habits, requests
        From `espalier.sim.requests`.
    train_slots : int
        A training example has both its requests before this slot, a test example both in it or later.
    """
    rows, row_of_request = np.unique(requests.contents, return_inverse=True)
    first_test = int(np.searchsorted(requests.slots, train_slots))

    def examples(of: slice) -> Examples:
        inputs, labels = torch.from_numpy(row_of_request[of]), torch.from_numpy(requests.contents[of])
        return Examples(inputs[:-1], labels[1:])

    return CachingData(
        table=torch.from_numpy(request_features(catalogue, habits, rows)),
        train=examples(slice(None, first_test)),
        train_slots=torch.from_numpy(requests.slots[:first_test])[1:],
        test=examples(slice(first_test, None)),
    )


def request_features(catalogue: Catalogue, habits: Habits, contents: np.ndarray) -> np.ndarray:
    """Return the features of requests for some contents by one UE.

    Returns
    -------
    np.ndarray
        Shape ``(len(contents), 3 + G + C_g)``, float32: v_u, p_u, g/G, the similarities to all contents of the genre
        (itself included), c/C_g.
    """
    genre, place = contents // catalogue.genre_size, contents % catalogue.genre_size
    features = np.empty((len(contents), 3 + catalogue.num_genres + catalogue.genre_size), np.float32)
    features[:, 0] = habits.exploitation
    features[:, 1 : 1 + catalogue.num_genres] = habits.genre_preference
    features[:, 1 + catalogue.num_genres] = genre / catalogue.num_genres
    features[:, 2 + catalogue.num_genres : -1] = catalogue.similarity[genre, place]
    features[:, -1] = place / catalogue.genre_size
    return features


def top_popular(labels: Sequence[Tensor], num_contents: int = 256) -> Tensor:
    """Return the scores by which Top-Popular predicts: the same whoever asks and whatever they asked for last.

    Parameters
    ----------
    labels : Sequence[Tensor]
        The contents asked for in the past, of all UEs.
    num_contents : int (default: 256)
        C.

    Returns
    -------
    Tensor
        Shape (num_contents,), float32: the more popular, the higher; no two are equal, of two contents with as many
        requests the first is the higher.
    """
    order = torch.bincount(torch.cat(list(labels)), minlength=num_contents).argsort(descending=True, stable=True)
    scores = torch.empty(num_contents)
    scores[order] = -torch.arange(num_contents, dtype=scores.dtype)
    return scores


def caching_mlp(seed: int, *, num_contents: int = 256) -> nn.Sequential:
    """Return the paper's network, 43-512-256-256 with ReLU, initialised: 219,648 parameters.

    Parameters
    ----------
    seed : int
        Decides the initial weights, which are drawn as torch does by default. The global generators are left as they
        were.
    num_contents : int (default: 256)
        Outputs.

    Returns
    -------
    nn.Sequential
        Maps (batch, 43) to logits (batch, num_contents). Its children are the blocks ``fc1``, ``fc2`` and
        ``head``; the last is a single `nn.Linear`.
    """
    with seeded_torch(seed, torch.device("cpu")):
        return nn.Sequential(
            OrderedDict(
                fc1=nn.Sequential(nn.Linear(43, 512), nn.ReLU()),
                fc2=nn.Sequential(nn.Linear(512, 256), nn.ReLU()),
                head=nn.Linear(256, num_contents),
            )
        )
