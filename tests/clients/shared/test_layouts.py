"""How images lie in memory."""

import pytest
import torch

from espalier.clients.shared.layouts import as_laid_out, laid_out, layout_of

BOTH = (torch.contiguous_format, torch.channels_last)


@pytest.mark.parametrize("shape", [(2, 3, 4, 5), (1, 3, 4, 5), (2, 1, 4, 5), (2, 3, 1, 1)])
@pytest.mark.parametrize("layout", BOTH)
def test_a_copy_has_the_layout_that_was_found_in_the_original(shape, layout):
    images = torch.empty(shape, memory_format=layout).normal_()
    assert layout_of(images) is layout
    for given in (images, images.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)):
        copied = laid_out(given, layout)
        assert copied.stride() == images.stride()
        assert torch.equal(copied, images)
        assert copied.data_ptr() != given.data_ptr()
    assert as_laid_out(images.double(), images).stride() == images.stride()


def test_all_but_images_lie_as_pytorch_has_them():
    for shape in ((2,), (2, 3), (2, 3, 4), (2, 3, 4, 5, 6)):
        turned = torch.randn(shape[::-1]).permute(*reversed(range(len(shape))))
        assert layout_of(turned) is torch.contiguous_format
        assert laid_out(turned, layout_of(turned)).is_contiguous()


def test_a_layer_may_write_into_what_it_gets_though_that_gets_a_gradient():
    inputs = torch.tensor([-1.0, 2.0], requires_grad=True)
    torch.relu_(laid_out(inputs, torch.contiguous_format)).sum().backward()
    assert inputs.tolist() == [-1.0, 2.0]
    assert inputs.grad.tolist() == [0.0, 1.0]
