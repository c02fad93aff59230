"""Images that are trained on change at random, in a way that is known, and by the seed."""

import pytest
import torch

from espalier.app.settings.values import AUGMENTATIONS
from espalier.app.tasks.augmentation import CHANGES, MOST_DEGREES, augmentation, cropped, rotated


@pytest.fixture
def images():
    return torch.randint(1, 256, (40, 3, 12, 9), generator=draws(0), dtype=torch.uint8)


def draws(seed):
    return torch.Generator().manual_seed(seed)


def test_the_settings_are_the_changes_that_there_are():
    assert tuple(CHANGES) == AUGMENTATIONS


@pytest.mark.parametrize("name", AUGMENTATIONS)
def test_the_seed_decides_and_form_stays(images, name):
    augment, before = augmentation([name]), images.clone()
    made = augment(images, draws(1))
    assert torch.equal(made, augment(images, draws(1)))
    assert not torch.equal(made, augment(images, draws(2)))
    assert made.shape == images.shape
    assert made.dtype == images.dtype
    assert torch.equal(images, before)


def test_a_crop_is_a_window_of_the_image_with_a_black_frame(images):
    framed = torch.zeros(40, 3, 20, 17, dtype=torch.uint8)
    framed[:, :, 4:16, 4:13] = images
    found = set()
    for image, crop in zip(framed, cropped(images, draws(1)), strict=True):
        places = [(y, x) for y in range(9) for x in range(9) if torch.equal(image[:, y : y + 12, x : x + 9], crop)]
        assert len(places) == 1
        found |= set(places)
    assert len(found) > 25


@pytest.mark.parametrize(("name", "axis"), [("flip", 2), ("vertical-flip", 1)])
def test_half_of_all_images_are_flipped(images, name, axis):
    made = CHANGES[name](images, draws(1))
    flipped = [torch.equal(new, old.flip(axis)) for new, old in zip(made, images, strict=True)]
    assert [torch.equal(new, old) for new, old in zip(made, images, strict=True)] == [not one for one in flipped]
    assert 10 <= sum(flipped) <= 30


def test_rotations_are_those_of_torchvision(images):
    from espalier.app.tasks.torchvision_compat import torchvision

    degrees = (2 * torch.rand(40, generator=draws(1), dtype=torch.float64) - 1) * MOST_DEGREES
    made = rotated(images, draws(1))
    rotate = torchvision.transforms.functional.rotate
    wanted = torch.stack([rotate(image, float(angle)) for image, angle in zip(images, degrees, strict=True)])
    # Where a pixel lies between two, rounding decides.
    assert (made == wanted).float().mean() > 0.995
    assert degrees.abs().max() > 15
    assert (made != images).float().mean() > 0.3


def test_changes_are_made_one_after_the_other(images):
    own = draws(1)
    assert torch.equal(augmentation(["crop", "flip"])(images, draws(1)), CHANGES["flip"](cropped(images, own), own))


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("channels", [1, 3])
def test_changed_images_lie_in_memory_as_they_did_so_that_halves_compute_what_the_whole_model_does(name, channels):
    images = torch.randint(256, (5, 9, 7, channels), dtype=torch.uint8).permute(0, 3, 1, 2)
    changed = CHANGES[name](images, torch.Generator().manual_seed(0))
    assert changed.dtype == images.dtype
    assert changed.stride() == images.stride()
