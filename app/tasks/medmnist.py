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
from espalier.app.tasks.image_data import FORMAT_VERSION, ImageData, LabelledImages, classes_in

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
        train, test = _pool(images, labels), _pool(test_images, test_labels)
        count = classes_in(train, test)
    except FAULTS as error:  # a damaged archive raises errors of many kinds
        allowed = f"allowed is an .npz file with {', '.join(ARRAYS)}, as https://medmnist.com has it"
        raise UserError(f"{file}: cannot be read ({error_line(error)}): {allowed}") from None
    image_data.save(
        folder,
        chain(train.images, test.images),
        train_labels=train.labels,
        test_labels=test.labels,
        classes=map(str, range(count)),
    )


def _pool(images: np.ndarray, labels: np.ndarray) -> LabelledImages:
    """Return a pool of a file; ValueError where it is none of images with one class each."""
    is_image = images.ndim == 3 or (images.ndim == 4 and images.shape[3] == 3)
    if images.dtype != np.uint8 or not is_image or labels.dtype.kind not in "ui":
        raise ValueError("images are not uint8 (N, height, width[, 3]), or labels no integers (N, 1)")
    return LabelledImages(images.reshape(*images.shape[:3], -1), labels.reshape(len(images)))
