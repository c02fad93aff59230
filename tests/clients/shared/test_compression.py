"""Codecs: what is expected of each, as equations, and what is refused of what comes in."""

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord

from espalier.clients.shared.arrays import to_record, to_weights
from espalier.clients.shared.compression import Codec, Float16, Int8, Qsgd, TopK, compressed, decompressed
from espalier.clients.shared.compression.updates import COMPRESSED

CODECS = (Float16(), Int8(), Qsgd(), Qsgd(levels=1, bucket=3), Qsgd(levels=32767), TopK(0.1), TopK(1))


def draws(seed=0):
    return torch.Generator().manual_seed(seed)


def model(seed, dtype=torch.float32):
    """Return a model with weights, statistics, a counter, a scalar and an array of nothing."""
    rng = draws(seed)
    return to_record(
        {
            "body.weight": torch.randn(7, 5, generator=rng).to(dtype),
            "norm.running_mean": torch.randn(5, generator=rng).to(dtype),
            "norm.num_batches_tracked": torch.tensor(seed),
            "head.bias": torch.randn((), generator=rng).to(dtype),
            "none": torch.zeros(0, 3, dtype=dtype),
        }
    )


def same(left, right):
    left, right = to_weights(left), to_weights(right)
    return list(left) == list(right) and all(torch.equal(left[name], right[name]) for name in left)


@pytest.mark.parametrize(("levels", "size"), [(1, 16), (3, 16), (7, 5), (4, 300)])
def test_qsgd_is_unbiased_and_within_its_variance_bound(levels, size):
    """E Q(v) = v and E |Q(v) - v|^2 <= min(d / s^2, sqrt(d) / s) |v|^2, over 10,000 draws (arXiv:1610.02132)."""
    codec, rng = Qsgd(levels, bucket=size), draws(1)
    v = torch.randn(size, generator=rng, dtype=torch.float64)
    every, zero = v.repeat(10_000), torch.zeros(10_000 * size, dtype=torch.float64)
    drawn = codec.decode(codec.encode(every, zero, rng), zero).view(10_000, size)
    assert float(drawn.std(0).max()) > 0
    assert ((drawn.mean(0) - v).abs() <= 4.5 * drawn.std(0) / 100 + 1e-6 * v.norm()).all()
    spread = float(((drawn - v) ** 2).sum(1).mean())
    assert spread <= 1.02 * min(size / levels**2, size**0.5 / levels) * float(v @ v)


@pytest.mark.parametrize(
    ("levels", "bits"), [(1, 2), (2, 3), (3, 3), (4, 4), (7, 4), (8, 5), (15, 5), (2**14 - 1, 15), (2**15 - 1, 16)]
)
def test_a_value_of_qsgd_takes_the_bits_that_tell_its_levels_apart(levels, bits):
    assert Qsgd(levels).bits == bits  # ceil(log2(2 s + 1))
    assert Qsgd(levels).num_bytes(1000, torch.float32) == 125 * bits + 2 * 4  # 1000 values, and norms of two buckets
    values = torch.randn(1000, generator=draws())
    assert len(Qsgd(levels).encode(values, torch.zeros(1000), draws())) == 125 * bits + 2 * 4


def test_every_bucket_of_qsgd_has_a_norm_of_its_own():
    codec, zero = Qsgd(levels=1, bucket=2), torch.zeros(5)
    v = torch.tensor([0.0, 3.0, -100.0, 0.0, 0.5])
    assert torch.equal(codec.decode(codec.encode(v, zero, draws()), zero), v)


def test_qsgd_has_the_levels_of_the_paper():
    codec, v = Qsgd(levels=5, bucket=8), torch.tensor([3.0, -4.0, 0.0])
    got = codec.decode(codec.encode(v, torch.zeros(3), draws()), torch.zeros(3))
    assert torch.equal(got, v)  # |v| = 5: they are on the levels 3, -4 and 0
    norms, levels = got.norm(), (got / got.norm() * 5)
    assert (float(norms), levels.round().tolist()) == (5.0, [3.0, -4.0, 0.0])


def test_rounded_updates_are_as_near_as_they_say():
    start = torch.zeros(1000, dtype=torch.float64)
    v = torch.randn(1000, generator=draws(), dtype=torch.float64)
    half = Float16().decode(Float16().encode(v, start, draws()), start)
    assert ((half - v).abs() <= v.abs() / 2048 + 2.0**-25).all()
    whole = Int8().decode(Int8().encode(v, start, draws()), start)
    assert float((whole - v).abs().max()) <= float(v.abs().max()) / 254 * (1 + 1e-6)
    largest = Float16().encode(start + 1e9, start, draws())
    assert float(Float16().decode(largest, start)[0]) == 65504


def test_top_k_sends_the_largest_of_each_array():
    start, values = torch.arange(5.0), torch.arange(5.0) + torch.tensor([0.1, -3, 0, 2, -0.2])
    got = TopK(0.4).decode(TopK(0.4).encode(values, start, draws()), start)
    assert torch.equal(got, torch.tensor([0.0, -2, 2, 5, 4]))


@pytest.mark.parametrize("codec", CODECS, ids=repr)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16], ids=str)
def test_the_receiver_has_what_the_sender_says_and_the_rest_as_it_was(codec, dtype):
    start, sent = model(0, dtype), model(1, dtype)
    made = compressed(codec, sent, start, {}, draws())
    got = decompressed(codec, made.beside, made.update, start)
    before, after = to_weights(sent), to_weights(got)
    for name in ("norm.running_mean", "norm.num_batches_tracked", "none"):
        assert torch.equal(before[name], after[name])
    sizes = sum(codec.num_bytes(count, dtype) for count in (35, 1))
    assert made.update[COMPRESSED].shape == (sizes,)
    assert len(made.update[COMPRESSED].data) == 128 + sizes  # NumPy's header, and nothing else


@pytest.mark.parametrize("codec", CODECS, ids=repr)
def test_no_change_sends_no_change(codec):
    start = model(0)
    made = compressed(codec, start, start, {}, draws())
    assert same(decompressed(codec, made.beside, made.update, start), start)
    assert not any(bool(error.any()) for error in made.errors.values())


def test_all_of_top_k_is_the_model_to_the_bit():
    start = to_record({"w": torch.randn(10_000, generator=draws(1))})
    end = {"w": torch.randn(10_000, generator=draws(2)) * 1e-3}
    end["w"][0] = -0.0
    errors = {}
    for _ in range(3):
        made = compressed(TopK(1), to_record(end), start, errors, draws())
        errors = made.errors
        arrived = to_weights(decompressed(TopK(1), made.beside, made.update, start))
        assert arrived["w"].numpy().tobytes() == end["w"].numpy().tobytes()
        assert not bool(errors["w"].any())
    by_difference = to_weights(start)["w"] + (end["w"] - to_weights(start)["w"])
    assert not torch.equal(by_difference, end["w"])  # so it had to be sent otherwise


def test_what_was_sent_and_what_is_left_are_all_updates():
    """The sum of what was sent, and e, is the sum of the updates; and e is the paper's."""
    rng, errors = draws(3), {}
    deltas, sent, e = torch.zeros(300), torch.zeros(300), torch.zeros(300)
    start = torch.randn(300, generator=rng)
    for _ in range(20):
        delta = 0.1 * torch.randn(300, generator=rng)
        end = start + delta
        began = to_record({"w": start})
        made = compressed(TopK(0.05), to_record({"w": end}), began, errors, draws())
        errors = made.errors
        got = to_weights(decompressed(TopK(0.05), made.beside, made.update, began))["w"]
        u = (end - start) + e
        kept = torch.zeros(300).scatter(0, u.abs().topk(15).indices, 1.0)
        assert torch.allclose(got - start, u * kept, atol=1e-6)
        e = u * (1 - kept)
        assert torch.allclose(errors["w"], e, atol=1e-6)
        deltas, sent, start = deltas + (end - start), sent + (got - start), got
    assert float((sent + errors["w"] - deltas).abs().max()) < 1e-6


@pytest.mark.parametrize("codec", [Float16(), Int8(), Qsgd(), TopK()], ids=repr)
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_nan_is_not_hidden(codec, value):
    start, wrong = torch.zeros(9), torch.zeros(9)
    wrong[4] = value
    with pytest.raises(ValueError, match="there is NaN or Inf in what is to travel as"):
        codec.encode(wrong, start, draws())


def test_an_update_that_no_norm_can_tell_is_refused():
    big = torch.full((9,), 3e38, dtype=torch.float64)
    with pytest.raises(ValueError, match="too long for qsgd"):
        Qsgd().encode(big, torch.zeros_like(big), draws())


def lying(update, how):
    data = np.frombuffer(bytes(update[COMPRESSED].data)[128:], np.uint8).copy()
    return ArrayRecord({COMPRESSED: Array(how(data))})


def put(value, dtype, place=0):
    """Return what overwrites the number of a data type at a place."""

    def overwrite(data):
        bits = np.array([value], dtype).view(np.uint8)
        data[place : place + len(bits)] = bits
        return data

    return overwrite


@pytest.mark.parametrize(
    ("codec", "how", "reason"),
    [
        (Float16(), lambda data: data[:-1], "expected 72 bytes"),
        (Float16(), lambda data: np.zeros(10**6, np.uint8), "expected 72 bytes"),
        (Float16(), lambda data: data.astype(np.float32), "its update is float32"),
        (Float16(), lambda data: data[None], "of shape (1, 72)"),
        (Int8(), put(np.nan, "<f4"), "a scale of its update is negative, NaN or Inf"),
        (Int8(), put(-1, "<f4"), "a scale of its update is negative, NaN or Inf"),
        (Qsgd(), put(np.inf, "<f4"), "a scale of its update is negative, NaN or Inf"),
        (Qsgd(), put(255, "u1", 4), "a level of its update is above 7"),
        (TopK(0.1), put(35, "<u2", 6), "places of its update are not in order, or not below 35"),
        (TopK(0.1), put(0, "<u2", 2), "places of its update are not in order, or not below 35"),
    ],
)
def test_what_is_no_update_is_refused_in_one_line(codec, how, reason):
    """The bytes of ``body.weight`` come first where its name does; here ``head.bias`` is behind it."""
    start = model(0)
    made = compressed(codec, model(1), start, {}, draws())
    # Of top-k's update of body.weight 4 places of 2 bytes come first.
    with pytest.raises(ValueError, match=r"^[^\n]*$") as raised:
        decompressed(codec, made.beside, lying(made.update, how), start)
    assert reason in str(raised.value)


def test_a_header_that_lies_allocates_nothing():
    start = model(0)
    made = compressed(Float16(), model(1), start, {}, draws())
    data = made.update[COMPRESSED].data
    huge = data.replace(b"(72,)", b"(9999999999999,)")[: len(data)]
    with pytest.raises(ValueError, match=r"can't be read|expected 72 bytes"):
        decompressed(
            Float16(), made.beside, ArrayRecord({COMPRESSED: Array("uint8", (72,), "numpy.ndarray", huge)}), start
        )


def test_other_arrays_than_those_of_the_model_are_refused():
    start = model(0)
    made = compressed(Float16(), model(1), start, {}, draws())
    with pytest.raises(ValueError, match="has not the one array of that name"):
        decompressed(Float16(), made.beside, to_record({"w": torch.zeros(3)}), start)
    with pytest.raises(ValueError, match="beside its update are 1 arrays, expected are the 3 that don't train"):
        decompressed(Float16(), to_record({"norm.running_mean": torch.zeros(5)}), made.update, start)
    with pytest.raises(ValueError, match="other arrays than those that were sent"):
        compressed(Float16(), to_record({"w": torch.zeros(3)}), start, {}, draws())


class Wrong(Codec):
    """A codec of a user's that does not keep its word."""

    def __init__(self, how):
        self.how = how

    def num_bytes(self, count, dtype):
        return count

    def encode(self, values, start, draws):
        return np.zeros(len(values) + (self.how == "long"), np.uint8)

    def decode(self, data, start):
        return {"long": start, "shape": start[:1], "fails": None}[self.how] if self.how != "fails" else 1 / 0


@pytest.mark.parametrize(
    ("how", "reason"), [("long", "and said 35 bytes"), ("shape", "of shape (1,)"), ("fails", "ZeroDivisionError")]
)
def test_a_codec_that_does_not_keep_its_word_is_named(how, reason):
    def there_and_back():
        made = compressed(Wrong(how), model(1), model(0), {}, draws())
        decompressed(Wrong(how), made.beside, made.update, model(0))

    with pytest.raises(ValueError, match=r"^[^\n]*$") as raised:
        there_and_back()
    assert reason in str(raised.value)


@pytest.mark.parametrize("given", [0, -1, 1.5, True, 2**15])
def test_levels_and_shares_are_checked(given):
    with pytest.raises(ValueError, match="levels is"):
        Qsgd(levels=given)
    with pytest.raises(ValueError, match="share is"):
        TopK(share=given if given != 1.5 else 1.1)
