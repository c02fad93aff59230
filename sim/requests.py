"""Who asks for which video when: the content requests of the UEs (RawHFL, sections II-B and V).

A content is a number from 0 to ``G * C_g - 1``: genre by genre, so that content ``c`` is number ``c % C_g`` of genre
``c // C_g``.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np

Similar = Literal["most-similar", "most-similar-not-back"]
SIMILAR = ("most-similar", "most-similar-not-back")


@dataclass(frozen=True)
class Catalogue:
    """All contents, which never change.

    Attributes
    ----------
    similarity : np.ndarray
        Shape ``(G, C_g, C_g)``: cosine similarities of the contents of each genre, symmetric, ones on the diagonal.
    most_popular : np.ndarray
        Shape ``(G,)``, ``int64``: the most popular content of each genre, as a number from 0 to ``G * C_g - 1``.
    """

    similarity: np.ndarray
    most_popular: np.ndarray

    @property
    def num_genres(self) -> int:
        """G."""
        return self.similarity.shape[0]

    @property
    def genre_size(self) -> int:
        """C_g, the same in every genre."""
        return self.similarity.shape[1]

    @property
    def num_contents(self) -> int:
        """C = G * C_g."""
        return self.num_genres * self.genre_size


@dataclass(frozen=True)
class Habits:
    """What a UE tends to do.

    Attributes
    ----------
    activity : float
        p_u,ac: the probability of a request in a slot.
    genre_preference : np.ndarray
        p_u: shape ``(G,)``, not negative, sums to 1.
    exploitation : float
        v_u: the probability that a request stays in the genre.
    """

    activity: float
    genre_preference: np.ndarray
    exploitation: float


@dataclass(frozen=True)
class Requests:
    """A UE's requests, in order of time. Slots without a request are left out.

    Attributes
    ----------
    slots : np.ndarray
        Shape ``(R,)``, ``int64``, increasing: the slot of each request.
    contents : np.ndarray
        Shape ``(R,)``, ``int64``: the content requested.
    """

    slots: np.ndarray
    contents: np.ndarray


def make_catalogue(seed: int, *, num_genres: int = 8, genre_size: int = 32, num_features: int = 16) -> Catalogue:
    """Draw the contents: features of U[0, 1] each, and the most popular content of every genre.

    Parameters
    ----------
    seed : int
        Seed of the run, the only source of chance. Not negative.
    num_genres, genre_size : int (default: 8, 32)
        G, at least 2, and C_g, at least 3.
    num_features : int (default: 16)
        Numbers that describe a content, at least 1.

    Raises
    ------
    ValueError
        If there are too few genres, contents or features.
    """
    for name, value, least in (
        ("num_genres", num_genres, 2),
        ("genre_size", genre_size, 3),
        ("num_features", num_features, 1),
    ):
        if value < least:
            raise ValueError(f"{name} = {value!r}: allowed is an integer >= {least}")
    features = _stream(seed, b"content-features").random((num_genres, genre_size, num_features))
    directions = features / np.linalg.norm(features, axis=2, keepdims=True)
    popular = _stream(seed, b"most-popular").integers(genre_size, size=num_genres)
    return Catalogue(
        similarity=directions @ directions.transpose(0, 2, 1),
        most_popular=np.arange(num_genres) * genre_size + popular,
    )


def draw_habits(
    seed: int,
    client: int,
    *,
    num_genres: int = 8,
    activity: tuple[float, float] = (0.2, 0.8),
    concentration: float = 0.3,
    exploitation: float | tuple[float, float] = (0.1, 0.8),
) -> Habits:
    """Draw the habits of one UE.

    Parameters
    ----------
    seed, client : int
        Seed of the run and number of the UE, not negative: together the only source of chance.
    num_genres : int (default: 8)
        G.
    activity : tuple[float, float] (default: (0.2, 0.8))
        p_u,ac is uniform between the two, probabilities above 0.
    concentration : float (default: 0.3)
        Of the symmetric Dirichlet distribution that the genre preferences come from, above 0.
    exploitation : float or tuple[float, float] (default: (0.1, 0.8))
        v_u: a probability, or uniform between two.

    Raises
    ------
    ValueError
        If a number is out of its range.
    """
    low, high = exploitation if isinstance(exploitation, tuple) else (exploitation, exploitation)
    if not 0 <= low <= high <= 1:
        raise ValueError(f"exploitation = {exploitation!r}: allowed is a probability, or two in ascending order")
    if not 0 < activity[0] <= activity[1] <= 1:
        raise ValueError(f"activity = {activity!r}: allowed are two probabilities above 0 in ascending order")
    if not 0 < concentration < np.inf:
        raise ValueError(f"concentration = {concentration!r}: allowed is a number > 0")
    return Habits(
        activity=_stream(seed, b"activity", client).uniform(*activity),
        genre_preference=_stream(seed, b"genre-preference", client).dirichlet(np.full(num_genres, concentration)),
        exploitation=_stream(seed, b"exploitation", client).uniform(low, high),
    )


def make_requests(
    seed: int, client: int, catalogue: Catalogue, habits: Habits, num_slots: int, *, similar: Similar = "most-similar"
) -> Requests:
    """Let one UE make its requests in the slots from 0 to ``num_slots - 1``.

    The first is the most popular content of its favourite genre. After that, with probability v_u the content of the
    same genre that is most similar to the last one, else the most popular content of another genre g', chosen with
    probability ``p_u,g' / (1 - p_u,g)`` where g is the genre of the last one.

    Parameters
    ----------
    seed, client : int
        Seed of the run and number of the UE, not negative: together the only source of chance. With more slots the
        requests of the first ones stay as they are.
    catalogue : Catalogue
        The contents.
    habits : Habits
        The UE's.
    num_slots : int
        Not negative.
    similar : "most-similar" or "most-similar-not-back" (default: "most-similar")
        The paper leaves open what most similar means. The first leaves out the last content itself, so that it often
        goes to and fro between two contents. The second leaves out the one before the last too.

    Raises
    ------
    ValueError
        If `similar` is unknown or `num_slots` negative.
    """
    if similar not in SIMILAR:
        raise ValueError(f"similar = {similar!r}: allowed is one of {', '.join(SIMILAR)}")
    if num_slots < 0:
        raise ValueError(f"num_slots = {num_slots!r}: allowed is an integer >= 0")
    slots = np.flatnonzero(_stream(seed, b"active", client).random(num_slots) < habits.activity)
    stays = _stream(seed, b"stays", client).random(len(slots)) < habits.exploitation
    draws = _stream(seed, b"next-genre", client).random(len(slots))
    size = catalogue.genre_size
    nearest, second = _two_most_similar(catalogue)
    other_genre = _other_genre_distribution(habits.genre_preference)
    contents: list[int] = []
    for i in range(len(slots)):
        if not contents:
            content = catalogue.most_popular[habits.genre_preference.argmax()]
        elif not stays[i]:
            content = catalogue.most_popular[other_genre[contents[-1] // size].searchsorted(draws[i], side="right")]
        elif similar == "most-similar-not-back" and contents[-2:-1] == [nearest[contents[-1]]]:
            content = second[contents[-1]]
        else:
            content = nearest[contents[-1]]
        contents.append(int(content))
    return Requests(slots, np.array(contents, dtype=np.int64))


def _two_most_similar(catalogue: Catalogue) -> tuple[np.ndarray, np.ndarray]:
    """Return for every content the most and the second most similar other content of its genre, shape ``(C,)`` each."""
    similarity = catalogue.similarity.copy()
    diagonal = np.arange(catalogue.genre_size)
    similarity[:, diagonal, diagonal] = -np.inf
    order = np.argsort(-similarity, axis=2, kind="stable")[:, :, :2]
    order += (np.arange(catalogue.num_genres) * catalogue.genre_size)[:, None, None]
    return order[:, :, 0].reshape(-1), order[:, :, 1].reshape(-1)


def _other_genre_distribution(preference: np.ndarray) -> np.ndarray:
    """Return, shape ``(G, G)``, row by row the distribution function of the next genre when it must differ from g."""
    weights = np.tile(preference, (len(preference), 1))
    np.fill_diagonal(weights, 0.0)
    # A UE that wants one genre only has nothing to choose by once it must leave it.
    weights[weights.sum(axis=1) == 0] = 1.0
    np.fill_diagonal(weights, 0.0)
    cumulative = weights.cumsum(axis=1)
    return cumulative / cumulative[:, -1:]


def _stream(seed: int, purpose: bytes, *client: int) -> np.random.Generator:
    """Return a generator of its own for one purpose, of one client or of all."""
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(*purpose, *client)))
