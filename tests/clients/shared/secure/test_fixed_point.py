"""Sums of whole numbers are sums of updates, to the error that is stated."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from espalier.clients.shared.secure.fixed_point import Form, Part, Scale, decoded, encoded, in_form
from espalier.clients.shared.secure.masks import Masked

SENT = {
    "w": torch.linspace(-1, 1, 12).reshape(3, 4),
    "bias": torch.zeros(3, dtype=torch.float64),
    "count": torch.tensor(7),
    "head": torch.ones(2),
}


def parts_of(seed, clients, spread=1.0):
    draws = torch.Generator().manual_seed(seed)

    def moved(tensor):
        if not tensor.is_floating_point():
            return tensor + int(torch.randint(0, 9, (), generator=draws))
        return tensor + spread * torch.randn(tensor.shape, generator=draws, dtype=tensor.dtype)

    told = [{"w": torch.randn(3, 4, generator=draws), "path": torch.tensor(1.5 + i)} for i in range(clients)]
    models = [{n: moved(t) for n, t in SENT.items() if n != "head"} for _ in range(clients)]
    return [Part(m, 10 + 7 * i, 0.5 * i, told[i]) for i, m in enumerate(models)]


def sum_of(parts, form, scale):
    total = Masked.zeros(*form.sizes)
    for part in parts:
        total.add(encoded(part, form, scale))
    return total


def mean(numbers, weights):
    return sum(own.double() * w for own, w in zip(numbers, weights, strict=True)) / sum(weights)


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10**6), clients=st.integers(1, 20))
def test_the_sum_is_the_weighted_mean_to_the_stated_error(seed, clients):
    parts, form = parts_of(seed, clients), Form(SENT, ("w", "path"), ("head",))
    scale = Scale(8.0, clients, 10 + 7 * 20)
    total = decoded(sum_of(parts, form, scale), form, scale, clients)
    weights = [part.weight for part in parts]
    assert total.model.keys() == {"w", "bias", "count"}
    for name in ("w", "bias"):
        off = (total.model[name] - mean([part.model[name] for part in parts], weights)).abs().max()
        assert off <= total.error + 1e-9
    assert total.error == pytest.approx(clients * scale.step / 2 * scale.most_weight / sum(weights))
    assert float(total.model["count"]) == pytest.approx(
        float(mean([p.model["count"] for p in parts], weights)), abs=1e-9
    )
    assert total.weight == sum(weights)
    assert total.loss == pytest.approx(np.average([p.loss for p in parts], weights=weights), abs=1e-6)
    assert (total.told["w"] - sum(p.told["w"].double() for p in parts) / clients).abs().max() <= scale.step / 2 + 1e-7
    assert float(total.told["path"]) == pytest.approx(1.5 + (clients - 1) / 2)
    assert total.clipped == 0


def test_the_error_of_a_large_sum_is_that_of_float32():
    scale = Scale(8.0, 64, 100)
    assert scale.levels == 2**25 - 1
    assert scale.error(64, 64 * 100) == pytest.approx(8 / 2**26, rel=1e-6)


def test_what_is_beyond_the_clip_is_clipped_and_counted():
    parts, form, scale = parts_of(1, 3, spread=20.0), Form(SENT, (), ("head",)), Scale(2.0, 3, 100)
    parts = [Part(p.model, p.weight) for p in parts]
    total = decoded(sum_of(parts, form, scale), form, scale, 3)
    clipped = [(p.model["w"] - SENT["w"]).clamp(-2, 2) + SENT["w"] for p in parts]
    assert torch.allclose(total.model["w"], mean(clipped, [p.weight for p in parts]), atol=1e-6)
    counts = [int(((p.model[n] - SENT[n]).abs() > 2).sum()) for p in parts for n in ("w", "bias")]
    assert total.clipped == sum(counts) > 10


def test_a_mean_has_the_types_of_what_was_sent():
    made = {"w": torch.zeros(3, 4, dtype=torch.float64), "count": torch.tensor(7.6, dtype=torch.float64)}
    found = in_form(made, Form(SENT))
    assert (found["w"].dtype, found["count"].dtype, int(found["count"])) == (torch.float32, torch.int64, 8)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"weight": 101}, "weighs 101, and the edge allows for 100"),
        ({"weight": 0}, "weighs 0"),
        ({"loss": float("nan")}, "beside its model is not from"),
        ({"told": {"w": torch.zeros(2), "path": torch.tensor(1.0)}}, "its w is of shape"),
        ({"told": {"w": torch.zeros(3, 4), "path": torch.tensor(1e7)}}, "beside its model is not from"),
        ({"model": {**SENT, "w": torch.full((3, 4), float("inf"))}}, "holds NaN or Inf"),
        ({"model": {"w": SENT["w"]}}, "has no array 'bias'"),
    ],
)
def test_what_is_no_part_of_a_sum_is_refused(change, reason):
    (part,) = parts_of(0, 1)
    form = Form(SENT, ("w", "path"), ("head",))
    with pytest.raises(ValueError, match=reason):
        encoded(Part(**{**vars(part), **change}), form, Scale(8.0, 4, 100))


def test_a_sum_that_no_clients_make_is_refused():
    form, scale = Form(SENT), Scale(8.0, 3, 100)
    noise = Masked(*(own.copy() for own in vars(Masked.mask(bytes(32), *form.sizes)).values()))
    with pytest.raises(ValueError, match="none of what clients can send"):
        decoded(noise, form, scale, 2)


def test_a_counter_whose_sum_would_wrap_is_refused():
    sent, scale = {"n": torch.tensor([0])}, Scale(8.0, 3, 1000)
    form, most = Form(sent), 2**53 // 3 // 1000
    made = [Part({"n": torch.tensor([most])}, 1000) for _ in range(3)]
    assert in_form(decoded(sum_of(made, form, scale), form, scale, 3).model, form)["n"].tolist() == [most]
    with pytest.raises(ValueError, match="its n changes by more than is summed exactly"):
        encoded(Part({"n": torch.tensor([most + 1])}, 1000), form, scale)
