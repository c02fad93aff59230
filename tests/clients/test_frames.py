"""Frames: what goes in comes out, and whatever else comes in is refused before anything is made of it."""

import struct

import numpy as np
import pytest
import torch

from espalier.clients.messages.frames import (
    PAYLOADS,
    TOP_SHARES,
    Feedback,
    Format,
    as_received,
    pack,
    unpack_activations,
    unpack_gradient,
)

HEADER_BYTES = 19
EXACT = Format()


def values(*shape, seed=0, scale=1.0, dtype=torch.float32):
    return scale * torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def sent(form=EXACT, shape=(4, 3, 5, 2), **changes):
    own = {"values": values(*shape), "step": 3, "num_steps": 9, "labels": torch.arange(shape[0], dtype=torch.int32)}
    return pack(form, **(own | changes))


def received(frame, form=EXACT, shape=(3, 5, 2), step=3):
    return unpack_activations(form, frame, step=step, sample_shape=shape)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(4, 3, 5, 2), (1, 7), (2, 3, 4)])
def test_what_the_model_computes_arrives_to_the_bit(shape, dtype):
    form = Format("float32", dtype)
    tensor = values(*shape, dtype=dtype)
    frame = received(sent(form, shape, values=tensor), form, shape[1:])
    assert torch.equal(frame.values, tensor)
    assert frame.values.dtype == dtype
    assert frame.labels.tolist() == list(range(shape[0]))
    assert (frame.num_steps, frame.seconds_held) == (9, 0.0)
    assert frame.tensor_bytes == tensor.numel() * tensor.itemsize


def test_images_travel_channels_last():
    tensor = values(2, 3, 4, 5)
    frame = sent(values=tensor, labels=torch.zeros(2, dtype=torch.int32))
    assert struct.unpack_from("<4I", frame, HEADER_BYTES) == (2, 4, 5, 3)
    assert np.frombuffer(frame[-2 * 60 * 4 :], "<f4").tolist() == tensor.permute(0, 2, 3, 1).flatten().tolist()


@pytest.mark.parametrize("scale", [1e-6, 1e-3, 1.0, 1e3])
@pytest.mark.parametrize("seed", range(5))
def test_float16_is_off_by_its_rounding(scale, seed):
    tensor = values(8, 50, seed=seed, scale=scale)
    form = Format("float16")
    found = unpack_gradient(form, pack(form, tensor, step=0), step=0, shape=(8, 50)).values
    assert found.dtype == torch.float32
    assert ((found - tensor).abs() <= tensor.abs() * 2**-11 + 2**-25).all()
    assert not torch.equal(found, tensor)


def test_bfloat16_has_float32s_range_and_eight_bits():
    form = Format("bfloat16")
    tensor = torch.cat([values(4, 50), values(4, 50, scale=1e30), values(4, 50, scale=1e-30)])
    found = as_received(form, tensor)
    assert ((found - tensor).abs() <= tensor.abs() * 2**-8).all()
    largest = torch.finfo(torch.bfloat16).max
    assert as_received(form, torch.tensor([[3.4e38, -3.4e38]])).tolist() == [[largest, -largest]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("payload", "share"), TOP_SHARES.items())
@pytest.mark.parametrize("shape", [(4, 3, 5, 2), (2, 70_000), (3, 1)])
def test_the_largest_values_of_each_sample_arrive_to_the_bit(payload, share, shape, dtype):
    form, tensor = Format(payload, dtype), values(*shape, dtype=dtype)
    found, each = as_received(form, tensor), int(np.prod(shape[1:]))
    kept = found != 0
    assert kept.flatten(1).sum(1).tolist() == [max(1, int(np.ceil(share * each)))] * shape[0]
    assert torch.equal(found[kept], tensor[kept])
    for sample, is_kept in zip(tensor, kept, strict=True):
        if not is_kept.all():
            assert sample[is_kept].abs().min() >= sample[~is_kept].abs().max()


@pytest.mark.parametrize("places", [[3, 2], [2, 2], [1, 8]])
def test_places_that_there_are_not_are_refused(places):
    form = Format("top-25%")
    frame = pack(form, values(1, 8), step=0)
    forged = frame[: -2 * 4 - 2 * 2] + np.array(places, "<u2").tobytes() + frame[-2 * 4 :]
    with pytest.raises(ValueError, match="not in order, or not below 8"):
        unpack_gradient(form, forged, step=0, shape=(1, 8))


def test_what_was_left_out_of_a_sample_is_sent_when_it_comes_again():
    form, feedback = Format("top-25%"), Feedback()
    first = torch.tensor([[4.0, 3.0, 2.0, 1.0], [8.0, 0.0, 0.0, 7.0]])
    assert feedback.added(form, first, np.array([5, 9])).tolist() == first.tolist()
    again = feedback.added(form, first, np.array([9, 7]))  # 9 has another place; 7 is new
    assert again.tolist() == [[4.0, 3.0, 2.0, 8.0], [8.0, 0.0, 0.0, 7.0]]
    assert as_received(form, again).tolist() == [[0.0, 0.0, 0.0, 8.0], [8.0, 0.0, 0.0, 0.0]]
    assert feedback.added(form, torch.zeros(1, 4), np.array([9])).tolist() == [[4.0, 3.0, 2.0, 0.0]]


def test_all_of_a_constant_arrives_in_the_end():
    form, feedback, tensor = Format("top-10%"), Feedback(), values(3, 40)
    total = sum(as_received(form, feedback.added(form, tensor, np.arange(3))) for _ in range(200))
    torch.testing.assert_close(total / 200, tensor, atol=0.15, rtol=0)
    assert (total / 200 - tensor).abs().max() < as_received(form, tensor).sub(tensor).abs().max() / 5


@pytest.mark.parametrize(("payload", "samples"), [("int8", np.arange(2)), ("top-10%", None)])
def test_nothing_is_fed_back_where_nothing_is_left_out_or_samples_are_not_known(payload, samples):
    feedback, tensor = Feedback(), values(2, 30)
    assert feedback.added(Format(payload), tensor, samples) is tensor
    assert feedback.added(Format(payload), tensor, samples) is tensor


def test_float16_ends_where_its_range_ends():
    form, tensor = Format("float16"), torch.tensor([[1e6, -1e30, 65504.0]])
    found = unpack_gradient(form, pack(form, tensor, step=0), step=0, shape=(1, 3)).values
    assert found.tolist() == [[65504.0, -65504.0, 65504.0]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("scale", [1e-30, 1e-3, 1.0, 1e30])
@pytest.mark.parametrize("seed", range(5))
def test_int8_is_off_by_half_a_step_of_the_samples_scale(scale, seed, dtype):
    tensor = values(8, 3, 5, 2, seed=seed, scale=scale, dtype=dtype)
    tensor[3] *= 1e-6  # a sample of its own size
    form = Format("int8", dtype)
    found = unpack_gradient(form, pack(form, tensor, step=0), step=0, shape=(8, 3, 5, 2)).values
    largest = tensor.abs().flatten(1).amax(1)[:, None, None, None]
    assert ((found - tensor).abs() <= largest / 254 * (1 + 1e-5)).all()
    assert found.dtype == dtype


@pytest.mark.parametrize("payload", PAYLOADS)
def test_zeros_stay_zeros(payload):
    form = Format(payload)
    frame = pack(form, torch.zeros(2, 3), step=0)
    assert torch.equal(unpack_gradient(form, frame, step=0, shape=(2, 3)).values, torch.zeros(2, 3))


@pytest.mark.parametrize("payload", PAYLOADS)
def test_the_size_of_a_frame_is_known_before(payload):
    form = Format(payload)
    assert len(sent(form)) == form.frame_bytes(4, (3, 5, 2))
    assert received(sent(form), form).tensor_bytes == form.tensor_bytes(4, 30)


def test_several_numbers_of_each_sample_go_with_it():
    numbers = torch.arange(12, dtype=torch.int32).view(4, 3)
    frame = sent(labels=numbers)
    assert len(frame) == EXACT.frame_bytes(4, (3, 5, 2), 3)
    read = unpack_activations(EXACT, frame, step=3, sample_shape=(3, 5, 2), numbers_per_sample=3)
    assert read.labels.tolist() == list(range(12))
    with pytest.raises(ValueError, match="12 labels for 4 activations"):
        received(frame)


@pytest.mark.parametrize("payload", PAYLOADS[1:])
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_shorter_payloads_hide_no_bad_number(payload, bad):
    with pytest.raises(ValueError, match="NaN or Inf"):
        pack(Format(payload), torch.tensor([[1.0, bad]]), step=0)


def test_the_time_a_frame_was_held_comes_back():
    frame = pack(Format(), torch.ones(1, 2), step=0, seconds_held=0.25)
    assert unpack_gradient(Format(), frame, step=0, shape=(1, 2)).seconds_held == 0.25


def with_header(frame=None, **changes):
    names = ("step", "num_steps", "code", "dimensions", "more", "held", "labels")
    frame = frame or sent()
    fields = dict(zip(names, struct.unpack_from("<IIBBBfI", frame), strict=True))
    return struct.pack("<IIBBBfI", *(fields | changes).values()) + frame[HEADER_BYTES:]


@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        (b"", "no header"),
        (sent()[:10], "no header"),
        (sent()[:25], "4 dimensions"),
        (with_header(step=2), "answered step 2, not step 3"),
        (with_header(code=2), "numbers of kind 2, expected 0"),
        (with_header(code=77), "numbers of kind 77"),
        (with_header(dimensions=0), "0 dimensions"),
        (with_header(dimensions=255), "255 dimensions"),
        (with_header(more=2), "expected 0 or 1"),
        (with_header(labels=3), "3 labels for 4 activations"),
        (with_header(labels=2**32 - 1), "4294967295 labels for 4"),
        (with_header(held=float("nan")), "held for nan s"),
        (with_header(held=-1.0), "held for -1.0 s"),
        (sent(shape=(4, 3, 5)), r"shape \(4, 3, 5\)"),
        (sent(shape=(4, 5, 5, 2)), r"expected \(N, 5, 2, 3\)"),
        (sent(shape=(0, 3, 5, 2)), r"shape \(0, 5, 2, 3\)"),
        (sent()[:-1], "expected"),
        (sent() + b"\0", "expected"),
    ],
)
def test_frames_that_do_not_fit_are_refused_in_one_line(frame, reason):
    with pytest.raises(ValueError, match=reason) as error:
        received(frame)
    assert "\n" not in str(error.value)


def test_no_claim_of_a_header_makes_anything_of_its_size():
    huge = 2**32 - 1
    frame = bytearray(with_header(labels=huge))
    struct.pack_into("<I", frame, HEADER_BYTES, huge)  # so many samples, and as many labels
    with pytest.raises(ValueError, match=r"a frame of .* bytes, expected"):
        received(bytes(frame))


def test_gradients_must_be_those_of_the_activations():
    frame = pack(Format(), torch.ones(2, 3), step=0)
    with pytest.raises(ValueError, match=r"gradient of shape \(2, 3\)"):
        unpack_gradient(Format(), frame, step=0, shape=(1, 3))
    with pytest.raises(ValueError, match="with 4 labels"):
        unpack_gradient(Format(), sent(), step=3, shape=(4, 3, 5, 2))


def test_formats_that_there_are_not():
    with pytest.raises(ValueError, match="float32, float16, bfloat16, int8, top-25%, top-10%"):
        Format("float8")
    with pytest.raises(ValueError, match="float32 and float64"):
        Format("float32", torch.bfloat16)


def test_a_part_says_that_another_follows():
    assert not received(sent()).more
    assert received(with_header(more=1)).more
