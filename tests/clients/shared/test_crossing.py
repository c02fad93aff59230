import pytest
import torch
from torch.nn.utils.rnn import pack_padded_sequence

from espalier.clients.shared.crossing import ROWS, Crossing, has_ambiguous_axes

LENGTHS = torch.tensor([3, 1])
TIME = torch.randn(5, 2, 4)
IMAGES = torch.randn(2, 3, 4, 4)


@pytest.mark.parametrize(
    ("output", "crossing", "rows"),
    [
        (TIME.transpose(0, 1), ROWS, TIME.transpose(0, 1)),
        (TIME, Crossing(time_first=True), TIME.transpose(0, 1)),
        ((TIME, LENGTHS), Crossing(time_first=True, has_lengths=True), TIME.transpose(0, 1)),
        ([TIME.transpose(0, 1), LENGTHS], Crossing(has_lengths=True), TIME.transpose(0, 1)),
        (IMAGES.to(memory_format=torch.channels_last), Crossing(torch.channels_last), IMAGES),
    ],
)
def test_what_a_block_gave_goes_and_comes_back(output, crossing, rows):
    assert Crossing.of(output, 2) == crossing
    travels = crossing.rows(output)
    assert torch.equal(travels, rows)
    given = crossing.given(travels, LENGTHS)
    values, lengths = given if crossing.has_lengths else (given, None)
    first = output if isinstance(output, torch.Tensor) else output[0]
    assert torch.equal(values, first)
    assert values.is_contiguous(memory_format=crossing.layout)
    assert values.data_ptr() != first.data_ptr()  # the next block may write into it
    assert lengths is None or torch.equal(lengths, LENGTHS)


def test_of_as_many_places_as_samples_sizes_tell_nothing():
    assert has_ambiguous_axes((torch.zeros(2, 2, 7), LENGTHS), 2)
    assert not has_ambiguous_axes(torch.zeros(2, 3, 7), 2)
    assert not has_ambiguous_axes(IMAGES, 2)
    assert Crossing.of(torch.zeros(2, 1, 7), 1).time_first  # of one sample the other axis is time


@pytest.mark.parametrize(
    "output", [(TIME, LENGTHS.float()), (TIME,), "text", pack_padded_sequence(TIME, LENGTHS), (TIME, LENGTHS[None])]
)
def test_other_things_do_not_cross(output):
    with pytest.raises(ValueError, match=r"allowed are a tensor, or a tensor and lengths \(N,\)"):
        Crossing.of(output, 2)
