"""The content requests follow the habits they are drawn from."""

from dataclasses import replace
from itertools import combinations, pairwise

import numpy as np
import pytest

from espalier.sim.requests import SIMILAR, Habits, draw_habits, make_catalogue, make_requests

G, SIZE = 8, 32
CATALOGUE = make_catalogue(0)
PREFERENCE = np.array([0.02, 0.05, 0.2, 0.35, 0.0, 0.15, 0.13, 0.1])


def close(share, probability, count):
    """Whether a share of `count` draws is within 4 standard deviations of their probability."""
    return abs(share - probability) <= 4 * np.sqrt(probability * (1 - probability) / count)


def habits(**changes):
    return replace(Habits(activity=0.6, genre_preference=PREFERENCE, exploitation=0.4), **changes)


def requested(own, num_slots=40_000, similar="most-similar", client=0):
    return make_requests(3, client, CATALOGUE, own, num_slots, similar=similar)


def most_similar(content, *without):
    """Return the most similar content of the genre by looking at all of them."""
    genre = content // SIZE
    others = [c for c in range(genre * SIZE, (genre + 1) * SIZE) if c != content and c not in without]
    return max(others, key=lambda c: CATALOGUE.similarity[genre, content % SIZE, c % SIZE])


@pytest.mark.parametrize("similar", SIMILAR)
@pytest.mark.parametrize("exploitation", [0.3, 0.7])
def test_frequencies_are_those_of_the_habits(similar, exploitation):
    own = habits(exploitation=exploitation)
    requests = requested(own, similar=similar)
    assert close(len(requests.slots) / 40_000, own.activity, 40_000)
    genres = requests.contents // SIZE
    stays = genres[1:] == genres[:-1]
    assert close(stays.mean(), exploitation, len(stays))
    # Whether slot i has a request says nothing about request i.
    active = np.isin(np.arange(1, len(stays) + 1), requests.slots)
    assert close(stays[active].mean(), exploitation, active.sum())
    visited = [g for g in range(G) if (genres[:-1] == g).sum() > 300]
    assert len(visited) >= 6
    for g in visited:
        following = genres[1:][(genres[:-1] == g) & ~stays]
        for other in set(range(G)) - {g}:
            probability = own.genre_preference[other] / (1 - own.genre_preference[g])
            assert close((following == other).mean(), probability, len(following)), (g, other)


@pytest.mark.parametrize("similar", SIMILAR)
def test_a_new_genre_starts_with_its_most_popular_content_and_the_first_is_the_favourite(similar):
    contents = requested(habits(), similar=similar).contents
    genres = contents // SIZE
    entered = np.flatnonzero(genres[1:] != genres[:-1]) + 1
    assert np.array_equal(contents[entered], CATALOGUE.most_popular[genres[entered]])
    assert contents[0] == CATALOGUE.most_popular[3]


def test_within_a_genre_the_most_similar_content_follows():
    contents = requested(habits(), 3000).contents
    followed = {(a, b) for a, b in pairwise(contents) if a // SIZE == b // SIZE}
    assert len(followed) > 10
    assert all(b == most_similar(a) for a, b in followed)


def test_not_back_leaves_out_the_content_before_the_last_as_well():
    contents = requested(habits(), 3000, "most-similar-not-back").contents
    followed = {
        (before, a, b)
        for before, a, b in zip(contents, contents[1:], contents[2:], strict=False)
        if a // SIZE == b // SIZE
    }
    assert all(b == most_similar(a, before) for before, a, b in followed)
    assert any(most_similar(a) == before for before, a, _ in followed)


@pytest.mark.parametrize("similar", SIMILAR)
def test_who_always_exploits_follows_one_chain(similar):
    contents = requested(habits(exploitation=1.0), 200, similar).contents.tolist()
    chain = [CATALOGUE.most_popular[3]]
    while len(chain) < len(contents):
        chain.append(most_similar(chain[-1], *(chain[-2:-1] if similar == "most-similar-not-back" else [])))
    assert contents == chain


def test_who_never_exploits_asks_for_popular_contents_only():
    contents = requested(habits(exploitation=0.0)).contents
    assert set(contents) <= set(CATALOGUE.most_popular)
    assert (contents[1:] != contents[:-1]).all()


def test_who_wants_one_genre_only_leaves_it_for_any_other_and_comes_back():
    only = np.eye(G)[5]
    genres = requested(habits(exploitation=0.0, genre_preference=only)).contents // SIZE
    assert (genres[::2] == 5).all()
    assert all(close((genres[1::2] == g).mean(), 1 / 7, len(genres) // 2) for g in set(range(G)) - {5})


@pytest.mark.parametrize("similar", SIMILAR)
def test_more_slots_leave_the_first_ones_as_they_are(similar):
    short, long = (requested(habits(), slots, similar) for slots in (150, 1000))
    first = long.slots < 150
    assert np.array_equal(short.slots, long.slots[first])
    assert np.array_equal(short.contents, long.contents[first])
    assert len(requested(habits(), 0).contents) == 0


def test_the_seed_and_the_client_decide_everything_and_each_purpose_has_its_own_chance():
    def drawn(seed, client):
        own = draw_habits(seed, client)
        return own.activity, *own.genre_preference, own.exploitation

    assert drawn(1, 2) == drawn(1, 2)
    assert not set(drawn(1, 2)) & (set(drawn(1, 3)) | set(drawn(2, 2)))
    # Another v_u changes neither the slots nor the preferences.
    fixed = draw_habits(1, 2, exploitation=0.5)
    assert fixed.exploitation == 0.5
    assert fixed.activity == draw_habits(1, 2).activity
    assert np.array_equal(fixed.genre_preference, draw_habits(1, 2).genre_preference)
    one, two = (requested(habits(exploitation=v), 500) for v in (0.2, 0.9))
    assert np.array_equal(one.slots, two.slots)
    other = requested(habits(), 500, client=1)
    assert not np.array_equal(other.slots, one.slots)


def test_users_and_seeds_have_chances_of_their_own():
    slots, own = 4000, [(3, 0), (3, 1), (4, 0)]
    limit = 4 / np.sqrt(slots)
    requests = [make_requests(*who, CATALOGUE, habits(activity=1.0), slots) for who in own]
    genres = [each.contents // 32 for each in requests]
    stays = [genre[1:] == genre[:-1] for genre in genres]
    active = [np.isin(np.arange(slots), make_requests(*who, CATALOGUE, habits(), slots).slots) for who in own]
    for a, b in combinations(range(3), 2):
        assert abs(np.corrcoef(stays[a], stays[b])[0, 1]) < limit
        assert abs(np.corrcoef(active[a], active[b])[0, 1]) < limit
        by_chance = sum((genres[a] == genre).mean() * (genres[b] == genre).mean() for genre in range(8))
        assert abs((genres[a] == genres[b]).mean() - by_chance) < limit
    assert (make_catalogue(0).most_popular != make_catalogue(1).most_popular).any()


def test_habits_have_the_papers_distributions():
    drawn = [draw_habits(0, client) for client in range(2000)]
    activity, exploitation = (np.array([getattr(h, name) for h in drawn]) for name in ("activity", "exploitation"))
    preference = np.array([h.genre_preference for h in drawn])
    for values, low, high in ((activity, 0.2, 0.8), (exploitation, 0.1, 0.8)):
        assert low <= values.min() < low + 0.01
        assert high - 0.01 < values.max() <= high
        assert values.mean() == pytest.approx((low + high) / 2, abs=4 * (high - low) / np.sqrt(12 * 2000))
    assert preference.sum(1) == pytest.approx(np.ones(2000))
    assert preference.mean(0) == pytest.approx(np.full(G, 1 / G), abs=0.025)
    # Of Dir(a) with G parts: E sum p^2 = (a + 1) / (G a + 1).
    assert (preference**2).sum(1).mean() == pytest.approx(1.3 / 3.4, abs=0.02)
    assert abs(np.corrcoef(activity, exploitation)[0, 1]) < 0.09


def test_similarities_are_cosines_of_16_uniform_numbers():
    similarity = CATALOGUE.similarity
    assert similarity.shape == (G, SIZE, SIZE)
    assert np.diagonal(similarity, axis1=1, axis2=2) == pytest.approx(np.ones((G, SIZE)))
    assert np.array_equal(similarity, similarity.transpose(0, 2, 1))
    assert [np.linalg.matrix_rank(genre, tol=1e-9) for genre in similarity] == [16] * G
    # The mean is near E[x]^2 / E[x^2] = 3/4.
    assert similarity[~np.broadcast_to(np.eye(SIZE, dtype=bool), similarity.shape)].mean() == pytest.approx(
        0.75, abs=0.03
    )
    assert len(np.unique(similarity[:, 0, 1:])) == G * (SIZE - 1)


def test_the_catalogue_has_one_popular_content_per_genre_and_follows_the_seed():
    assert np.array_equal(CATALOGUE.most_popular // SIZE, np.arange(G))
    assert len(set(CATALOGUE.most_popular % SIZE)) > 2
    same, other = make_catalogue(0), make_catalogue(1)
    assert np.array_equal(same.similarity, CATALOGUE.similarity)
    assert np.array_equal(same.most_popular, CATALOGUE.most_popular)
    assert not np.array_equal(other.similarity, CATALOGUE.similarity)
    small = make_catalogue(0, num_genres=2, genre_size=3, num_features=1)
    assert (small.num_genres, small.genre_size, small.num_contents) == (2, 3, 6)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: make_catalogue(0, num_genres=1), "num_genres = 1: allowed is an integer >= 2"),
        (lambda: make_catalogue(0, genre_size=2), "genre_size = 2: allowed is an integer >= 3"),
        (lambda: make_catalogue(0, num_features=0), "num_features = 0: allowed is an integer >= 1"),
        (lambda: draw_habits(0, 0, exploitation=1.2), "exploitation = 1.2: allowed is a probability, or two in"),
        (lambda: draw_habits(0, 0, exploitation=(0.8, 0.1)), r"exploitation = \(0.8, 0.1\): allowed is"),
        (lambda: draw_habits(0, 0, activity=(0.0, 0.5)), r"activity = \(0.0, 0.5\): allowed are two probabilities"),
        (lambda: draw_habits(0, 0, concentration=0), "concentration = 0: allowed is a number > 0"),
        (lambda: requested(habits(), -1), "num_slots = -1: allowed is an integer >= 0"),
        (lambda: requested(habits(), 5, "alike"), "similar = 'alike': allowed is one of most-similar, most-similar-"),
    ],
)
def test_bad_values_are_refused_in_one_line(call, message):
    with pytest.raises(ValueError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)
