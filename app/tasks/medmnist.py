"""MedMNIST: one ``.npz`` file for each of its sets of small medical images."""

from functools import partial
from itertools import chain
from pathlib import Path

import numpy as np

from espalier.app.ground.errors import FAULTS, UserError
from espalier.app.ground.object_spec import error_line
from espalier.app.tasks import image_data
from espalier.app.tasks.cache import fingerprint, load_or_build
from espalier.app.tasks.dataset import DataPlace, Dataset
from espalier.app.tasks.image_data import FORMAT_VERSION, ImageData, check_classes

# Those of images with one class each; "chestmnist" has fourteen answers for each image.
NAMES = ("blood", "breast", "derma", "oct", "organa", "organc", "organs", "path", "pneumonia", "retina", "tissue")
ARRAYS = ("train_images", "train_labels", "test_images", "test_labels")


def medmnist_sets() -> list[Dataset]:
    """Return them: each is the file of its name in data-dir."""
    return [Dataset(f"{name}mnist", partial(_load, f"{name}mnist")) for name in NAMES]


def _load(name: str, place: DataPlace) -> ImageData:
    file = (place.data_dir or place.cache_dir / "downloads") / f"{name}.npz"
    if not file.is_file():
        raise UserError(f"{file}: no such file: put {name}.npz of https://medmnist.com there, or set data-dir")
    key = fingerprint(file.parent, [file], str(file.resolve()), FORMAT_VERSION)
    return load_or_build(place.cache_dir / f"{name}-{key}", build=partial(_build, file), load=image_data.load)


def _build(file: Path, folder: Path) -> None:
    """Write the training and the test pool of a file; that for validation is left out."""
    try:
        with file.open("rb") as opened, np.load(opened) as arrays:  # NumPy leaves a damaged file open
            images, labels, test_images, test_labels = (arrays[name] for name in ARRAYS)
        pools = [(images, labels.reshape(len(images))), (test_images, test_labels.reshape(len(test_images)))]
        if any(i.dtype != np.uint8 or i.ndim not in (3, 4) or not len(i) or o.dtype.kind not in "ui" for i, o in pools):
            raise ValueError("images are not uint8 (N, height, width[, 3]), or labels no integers (N, 1)")
        if images.shape[1:] != test_images.shape[1:]:
            raise ValueError(f"training images are {images.shape[1:]}, test images {test_images.shape[1:]}")
    except FAULTS as error:  # a damaged archive raises errors of many kinds
        allowed = f"allowed is an .npz file with {', '.join(ARRAYS)}, as https://medmnist.com has it"
        raise UserError(f"{file}: cannot be read ({error_line(error)}): {allowed}") from None
    (_, train_labels), (_, test_labels) = pools
    check_classes(file, train_labels, test_labels)
    image_data.save(
        folder,
        chain.from_iterable(i.reshape(*i.shape[:3], -1) for i, _ in pools),
        train_labels=train_labels,
        test_labels=test_labels,
        classes=map(str, range(1 + int(max(train_labels.max(), test_labels.max())))),
    )
