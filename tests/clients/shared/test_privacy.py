"""Clipping, and the noise of differential privacy."""

import numpy as np
import pytest
import torch

from espalier.clients.shared.privacy import clipped, length_of, noise_generator, noised

SENT = {"w": torch.arange(6.0).reshape(2, 3), "b": torch.ones(4, dtype=torch.float64), "count": torch.tensor(7)}


def moved(scale):
    draws = torch.Generator().manual_seed(1)
    update = {name: torch.randn(own.shape, generator=draws).to(own.dtype) for name, own in SENT.items()}
    return {name: own + scale * update[name] if own.is_floating_point() else own + 3 for name, own in SENT.items()}


def update_of(model):
    return {name: own - SENT[name] for name, own in model.items() if own.is_floating_point()}


@pytest.mark.parametrize("clip", [0.1, 1.0, 3.0])
def test_a_long_update_gets_the_length_and_keeps_its_direction(clip):
    model = moved(10.0)
    within = clipped(model, SENT, clip)
    long, short = update_of(model), update_of(within)
    assert length_of(short) == pytest.approx(clip, rel=1e-5)
    factor = clip / length_of(long)
    assert all(torch.allclose(short[name], factor * long[name], rtol=1e-4, atol=1e-6) for name in long)
    assert within["count"] is model["count"]
    assert all(within[name].dtype == SENT[name].dtype for name in SENT)


@pytest.mark.parametrize(("scale", "clip"), [(0.0, 1.0), (0.01, 1.0), (1e6, 0.0)])
def test_a_short_update_and_any_where_there_is_no_bound_stay_to_the_bit(scale, clip):
    model = moved(scale)
    assert clipped(model, SENT, clip) is model


def test_the_length_is_that_of_all_numbers_but_integers():
    flat = np.concatenate([own.double().numpy().ravel() for own in update_of(moved(2.0)).values()])
    assert length_of({**update_of(moved(2.0)), "count": torch.tensor(100)}) == pytest.approx(np.linalg.norm(flat))
    assert length_of({"w": torch.full((3,), 1e38)}) == pytest.approx(3**0.5 * 1e38)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"w": torch.full((2, 3), torch.nan)}, "no finite length"),
        ({"w": torch.zeros(3, 2)}, "w is of another shape or type"),
        ({"w": torch.zeros(2, 3, dtype=torch.float64)}, "w is of another shape or type"),
        ({"more": torch.zeros(1)}, "has other arrays"),
    ],
)
def test_what_can_not_be_clipped_is_refused(change, said):
    with pytest.raises(ValueError, match=said):
        clipped({**SENT, **change}, SENT, 1.0)


def test_noise_has_its_standard_deviation_at_every_number_but_integers():
    zeros = {"a": torch.zeros(400, 500), "b": torch.zeros(200_000), "count": torch.tensor(7)}
    noise = noised(zeros, 0.3, noise_generator(5, "edge-0", 1))
    for name in ("a", "b"):
        assert float(noise[name].std()) == pytest.approx(0.3, rel=0.01)
        assert abs(float(noise[name].mean())) < 5 * 0.3 / 200_000**0.5
    assert abs(float(torch.corrcoef(torch.stack([noise["a"].ravel(), noise["b"]]))[0, 1])) < 0.01
    assert noise["count"] is zeros["count"]
    assert noised(zeros, 0.0, noise_generator(5)) is zeros


def test_noise_follows_seed_drawer_and_round_or_nothing_that_is_known():
    def drawn(*whose):
        return noised(SENT, 1.0, noise_generator(*whose))["w"]

    assert torch.equal(drawn(5, "edge-0", 1), drawn(5, "edge-0", 1))
    others = [drawn(6, "edge-0", 1), drawn(5, "edge-1", 1), drawn(5, "edge-0", 2), drawn(None, "edge-0", 1)]
    assert not any(torch.equal(drawn(5, "edge-0", 1), other) for other in others)
    assert not torch.equal(drawn(None, "edge-0", 1), drawn(None, "edge-0", 1))
