"""A data set of a user's own: what a function returned, as the app's data sets are."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from espalier.app.ground.errors import FAULTS, bad_value
from espalier.app.ground.object_spec import ObjectSpec, error_line
from espalier.app.ground.registered import call_with
from espalier.app.tasks.image_data import ImageData, LabelledImages, channel_statistics, classes_in

WANTED = "a function that returns (train_images, train_labels), (test_images, test_labels)"


def load_own(spec: ObjectSpec, data_dir: Path | None) -> ImageData:
    """Return the data set that a user's own function makes.

    Parameters
    ----------
    spec : ObjectSpec
        Names the function. It gets ``data_dir`` if it has a parameter of that name, and the arguments of the text. It
        returns the two pools, each as ``(images, labels)``: ``uint8`` of shape ``(N, height, width, channels)``, or
        ``(N, height, width)`` for grey ones, and integers from 0 of shape ``(N,)``; and, if it likes, the names of the
        classes as a third value.
    data_dir : Path or None
        The setting.

    Raises
    ------
    UserError
        If it can't be imported, fails, or returns something else.
    """
    given = call_with(spec, {"data_dir": data_dir})
    try:
        pools, names = given[:2], given[2:]
        train, test = (_pool(*pool) for pool in pools)
        classes = _classes(train, test, *names)
    except FAULTS as error:  # what it returned is foreign code, too
        raise bad_value(spec.key, spec.text, f"{WANTED} ({error_line(error)})") from None
    return ImageData(train, test, classes, *channel_statistics(train.images))


def _pool(images: np.ndarray, labels: np.ndarray) -> LabelledImages:
    """Return a pool, checked; ValueError for what is none."""
    images, labels = np.asarray(images), np.asarray(labels)
    if images.dtype != np.uint8:
        raise ValueError(f"images are {images.dtype}, not uint8")
    images = images[..., None] if images.ndim == 3 else images
    if images.ndim != 4 or not images.size:
        raise ValueError(f"images have the shape {images.shape}, not (N, height, width, channels)")
    if labels.shape != images.shape[:1] or not np.issubdtype(labels.dtype, np.integer):
        raise ValueError(f"labels are {labels.dtype} {labels.shape}, not integers {images.shape[:1]}")
    labels = labels.astype(np.int64)
    for array in (images := images.view(), labels):
        array.setflags(write=False)
    return LabelledImages(images, labels)


def _classes(train: LabelledImages, test: LabelledImages, names: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the classes' names; ValueError where the two pools do not go together, or with them."""
    count = classes_in(train, test)
    if names and len(names) < count:
        raise ValueError(f"{len(names)} names of classes for {count}")
    return tuple(map(str, names or range(count)))
