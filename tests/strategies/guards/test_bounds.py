"""Without a bound of one's own only the absurd is refused; a tight one tells weights from statistics, and long training
from lies."""

import numpy as np
import pytest

from espalier.strategies import Guard, UpdateGuard
from tests.strategies.guards.tight import tight

FEATURES = 4


def model(weights=1.0, mean=0.0, variance=1.0):
    return {
        "norm.running_mean": np.full(FEATURES, mean, np.float32),
        "norm.running_var": np.full(FEATURES, variance, np.float32),
        "norm.num_batches_tracked": np.array(3),
        "layer.weight": np.full(FEATURES, weights, np.float32),
    }


def refused(guard, models, sent=None, **options):
    """Who is refused, and why, of models that come back in one round."""
    sent = sent or model()
    verdicts = guard.judge({n: (sent, own) for n, own in enumerate(models)}, **options)
    return {n: verdict.reason for n, verdict in verdicts.items()}


def as_sent_back(own, rate, sent=None):
    """A model, or the accumulated gradient that leads to it at a learning rate."""
    sent = sent or model()
    return own if rate is None else {n: (sent[n] - w) / rate if w.dtype.kind == "f" else w for n, w in own.items()}


@pytest.mark.parametrize("length", [1e2, 1e5, 1e8])
@pytest.mark.parametrize("others", [0, 1, 7])
def test_by_default_a_finite_update_is_averaged_however_far_it_goes(length, others):
    """The last of a long run are a billionth of the model: then one is ten times as long as the others."""
    small = [model(1 + 1e-6)] * others
    assert refused(UpdateGuard(Guard()), [*small, model(1 + length, mean=length, variance=length**2)]) == {}
    assert refused(UpdateGuard(Guard()), [*small, model(0.0)]) == {}


def test_a_negative_variance_is_named_so():
    (reason,) = refused(UpdateGuard(Guard()), [*[model(1.1)] * 4, model(variance=-0.1)]).values()
    assert reason == "a running variance is below zero, where 0 or more is allowed (guard.mode)"


def test_by_default_the_absurd_is_left_out():
    for absurd in (model(1e12), model(-1e12), model(mean=1e12), model(variance=1e25), model(variance=-0.1)):
        assert set(refused(UpdateGuard(Guard()), [*[model(1.1)] * 4, absurd])) == {4}
    said = refused(UpdateGuard(Guard()), [*[model(1.1)] * 4, model(1e12), model(mean=1e12)])
    assert said == {
        4: "its update is 2e+12 long, where 2e+09 is allowed (guard.mode)",
        5: "its running statistics are 2e+12 from those sent, where 2e+09 is allowed (guard.mode)",
    }
    assert refused(UpdateGuard(Guard("off")), [*[model(1.1)] * 4, model(1e12)]) == {}


def test_by_default_nothing_is_absurd_where_there_is_nothing_to_go_by():
    """A model that begins at zero, or raw features: the first client says how long things are."""
    zero = {"layer.weight": np.zeros(FEATURES, np.float32)}
    assert refused(UpdateGuard(Guard()), [{"layer.weight": np.full(FEATURES, 1e9, np.float32)}], sent=zero) == {}
    assert refused(UpdateGuard(Guard()), [model(mean=1e8, variance=1e16)]) == {}


def test_by_default_activations_of_any_unit_pass():
    guard = UpdateGuard(Guard()).activations
    for node_id, length in enumerate([1.0, 1.0, 1e6]):
        assert guard.admitted(node_id, 1, length) == 1.0
        guard.took(node_id, 1, length)
    assert guard.judge() == {}
    guard.begin_round()
    with pytest.raises(ValueError, match=r"are 1e\+12 long, where 1e\+09 is allowed \(guard\.mode\)"):
        guard.admitted(0, 1, 1e12)


@pytest.mark.parametrize("round_of_training", [1, 20])
def test_a_tight_bound_lets_one_have_features_of_four_times_the_spread(round_of_training):
    """Statistics are averages of data: they never come closer than the data are."""
    spread = 10.0 * round_of_training
    sent = model(variance=(7 * spread**2 + (4 * spread) ** 2) / 8)
    others = [model(1.1, mean=0.01 * n, variance=spread**2) for n in range(7)]
    assert refused(UpdateGuard(tight()), [*others, model(1.1, variance=(4 * spread) ** 2)], sent) == {}
    # Nor where it had been left out before, so that what is sent are the others' statistics.
    like = model(variance=spread**2)
    assert refused(UpdateGuard(tight()), [*others, model(1.1, variance=(4 * spread) ** 2)], like) == {}


def test_large_statistics_hide_nothing_that_is_done_to_weights():
    sent = model(variance=1e4)
    others = [model(1.1, mean=10.0 * n, variance=4e4) for n in range(4)]
    lie = model(101.0, mean=10.0, variance=4e4)
    assert list(refused(UpdateGuard(tight()), [*others, lie], sent)) == [4]
    assert (
        "its update is 200 long, where 2 is allowed (guard.update-norm)"
        in refused(UpdateGuard(tight()), [*others, lie], sent).values()
    )


def test_statistics_have_a_bound_of_their_own():
    others = [model(1.1, mean=0.1 * n) for n in range(4)]
    (reason,) = refused(UpdateGuard(tight()), [*others, model(1.1, mean=50.0)]).values()
    assert reason == "its running statistics are 100 from those sent, where 20 is allowed (guard.update-norm)"


def test_what_is_clipped_is_so_each_by_its_own_bound():
    others = [model(1.1, mean=0.1 * n) for n in range(4)]
    (verdict,) = (
        UpdateGuard(tight("clip"))
        .judge({n: (model(), own) for n, own in enumerate([*others, model(1.1, mean=50.0, variance=1.0)])})
        .values()
    )
    np.testing.assert_allclose(verdict.instead["layer.weight"], 1.1)
    np.testing.assert_allclose(verdict.instead["norm.running_mean"], 10.0)
    assert verdict.instead["norm.num_batches_tracked"] == 3


@pytest.mark.parametrize("rate", [None, 0.1])
def test_a_clipped_variance_is_within_the_bound(rate):
    sent = model(variance=1.0)
    models = [as_sent_back(own, rate) for own in [*[model(1.1, variance=1.21)] * 4, model(1.1, variance=1e6)]]
    (verdict,) = UpdateGuard(tight("clip")).judge({n: (sent, own) for n, own in enumerate(models)}, rate).values()
    clipped = verdict.instead["norm.running_var"]
    variance = clipped if rate is None else sent["norm.running_var"] - rate * clipped
    # Statistics 2 long, so that each of the four deviations may change by 10.
    np.testing.assert_allclose(np.sqrt(variance) - 1, 10.0, rtol=1e-3)
    np.testing.assert_array_equal(verdict.instead["layer.weight"], models[4]["layer.weight"])


def test_who_trains_on_200_times_the_examples_may_go_as_far_as_that():
    models = [*[model(1.1)] * 5, model(1 + 20.0)]
    counts = dict.fromkeys(range(5), 20.0) | {5: 4000.0}
    assert list(refused(UpdateGuard(tight()), models)) == [5]
    assert refused(UpdateGuard(tight()), models, examples=counts) == {}
    # But no farther; and nobody gains by what is not known of all.
    assert list(refused(UpdateGuard(tight()), [*[model(1.1)] * 5, model(1 + 201.0)], examples=counts)) == [5]
    assert list(refused(UpdateGuard(tight()), models, examples=counts | {0: 0.0})) == [5]


def test_gradients_are_held_to_the_same_bounds():
    rate = 0.1
    others = [as_sent_back(model(1.1, mean=0.1 * n, variance=1.1), rate) for n in range(4)]
    lies = [as_sent_back(lie, rate) for lie in (model(50.0), model(1.1, mean=50.0), model(1.1, variance=-0.5))]
    assert set(refused(UpdateGuard(tight()), [*others, *lies], rate=rate)) == {4, 5, 6}


@pytest.mark.parametrize("rate", [0.01, 0.07, 0.1, 0.3])
def test_by_default_a_variance_of_zero_that_came_as_a_gradient_is_no_lie(rate):
    """A channel that is always zero has such a one, and the way there and back rounds."""
    sent = model() | {"norm.running_var": np.linspace(0.1, 1.0, 1000, dtype=np.float32)}
    dead = sent | {"norm.running_var": np.full(1000, 1e-20, np.float32)}
    assert refused(UpdateGuard(Guard()), [as_sent_back(dead, rate, sent)] * 4, sent, rate=rate) == {}
