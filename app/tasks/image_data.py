"""A data set of labelled images, and its form on disk: plain ``.npy`` files beside one ``meta.json``."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path

import numpy as np

from espalier.clients.messages.profile import MOST_CLASSES

#: Part of every cache key: raise it when the files, or what the decoding gives, change their meaning.
FORMAT_VERSION = 2

_POOLS = ("train", "test")


@dataclass(frozen=True)
class LabelledImages:
    """One pool of images.

    Attributes
    ----------
    images : np.ndarray
        ``uint8``, shape ``(N, height, width, channels)``; read-only.
    labels : np.ndarray
        ``int64``, shape ``(N,)``: the index of each image's class; read-only.
    """

    images: np.ndarray
    labels: np.ndarray


@dataclass(frozen=True)
class ImageData:
    """A data set: the pools for training and testing, and what both share.

    Attributes
    ----------
    train, test : LabelledImages
        The two pools; their images have one shape.
    classes : tuple[str, ...]
        The name of each class, by label.
    mean, std : tuple[float, ...]
        Per channel, over all pixels of the training pool scaled to [0, 1]. A channel that never varies
        has a ``std`` of 1, so that dividing by it is always safe.
    columns : Mapping[str, np.ndarray], optional (default: none)
        What else is known of each training image, such as who wrote it, by name; shape ``(N,)``.
    """

    train: LabelledImages
    test: LabelledImages
    classes: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    columns: Mapping[str, np.ndarray] = field(default_factory=dict)


def channel_statistics(images: np.ndarray) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the mean and the standard deviation of each channel, of pixels scaled to [0, 1].

    Pixels are counted, not summed: the result is exact and does not depend on the machine or on how the
    images are chunked.

    Parameters
    ----------
    images : np.ndarray
        ``uint8``, shape ``(N, height, width, channels)``. A memory map is read piece by piece.

    Returns
    -------
    tuple[tuple[float, ...], tuple[float, ...]]
        The means and the standard deviations (1 for a channel that never varies).
    """
    channels = images.shape[-1]
    counts = np.zeros((channels, 256), dtype=np.int64)
    for start in range(0, len(images), 1024):
        pixels = np.asarray(images[start : start + 1024]).reshape(-1, channels)
        for channel in range(channels):
            counts[channel] += np.bincount(pixels[:, channel], minlength=256)
    share = counts / counts.sum(axis=1, keepdims=True)
    level = np.arange(256) / 255
    mean = share @ level
    std = np.sqrt((share * (level - mean[:, None]) ** 2).sum(axis=1))
    std[(counts > 0).sum(axis=1) == 1] = 1.0
    return tuple(mean.tolist()), tuple(std.tolist())


def save(
    folder: Path,
    images: Iterable[np.ndarray],
    *,
    train_labels: np.ndarray,
    test_labels: np.ndarray,
    classes: Iterable[str],
    columns: Mapping[str, np.ndarray] | None = None,
) -> None:
    """Write a data set into an empty folder, holding no more than one image in memory at a time.

    Parameters
    ----------
    folder : Path
        An existing folder.
    images : Iterable[np.ndarray]
        ``uint8`` images of one shape ``(height, width, channels)``: those of the training pool, then
        those of the test pool.
    train_labels, test_labels : np.ndarray
        The label of each image; neither may be empty.
    classes : Iterable[str]
        The name of each class, by label.
    columns : Mapping[str, np.ndarray], optional
        See `ImageData`; numbers or texts.
    """
    images = iter(images)
    meta: dict[str, object] = {"classes": list(classes)}
    for pool, labels in zip(_POOLS, (train_labels, test_labels), strict=True):
        meta[pool] = save_pool(folder, pool, images, labels)
    meta["mean"], meta["std"] = channel_statistics(np.load(folder / "train-images.npy", mmap_mode="r"))
    meta["columns"] = list(columns or {})
    for number, values in enumerate((columns or {}).values()):
        np.save(folder / f"column-{number}.npy", values, allow_pickle=False)
    (folder / "meta.json").write_text(json.dumps(meta, indent=1), encoding="utf-8")


def classes_in(train: LabelledImages, test: LabelledImages, most: int = MOST_CLASSES) -> int:
    """Return the number of classes, one more than the largest label.

    Raises
    ------
    ValueError
        Images, their labels and the two pools don't go together; the message says why.
    """
    if train.images.shape[1:] != test.images.shape[1:]:
        raise ValueError(f"images to train on are {train.images.shape[1:]}, and to test on {test.images.shape[1:]}")
    for name, pool in zip(_POOLS, (train, test), strict=True):
        if not len(pool.images) == len(pool.labels) > 0:
            raise ValueError(f"the {name} pool has {len(pool.images)} images and {len(pool.labels)} labels")
        low, high = int(pool.labels.min()), int(pool.labels.max())
        if low < 0 or high >= most:
            raise ValueError(f"labels are from 0 to {most - 1} at most, not from {low} to {high}")
    if len(lacking := np.setdiff1d(test.labels, train.labels)):
        raise ValueError(f"class {lacking[0]} is in the test pool alone")
    return 1 + int(train.labels.max())


def save_pool(folder: Path, pool: str, images: Iterable[np.ndarray], labels: np.ndarray) -> tuple[int, ...]:
    """Write one pool into a folder, holding no more than one image in memory at a time, and return its shape.

    Parameters
    ----------
    folder : Path
        An existing folder.
    pool : str
        The name of the pool; its two files are named after it.
    images : Iterable[np.ndarray]
        As for `save`. Of an iterator, as many are taken as there are labels.
    labels : np.ndarray
        The label of each image; at least one.
    """
    images = iter(images)
    first = next(images)
    shape = (len(labels), *first.shape)
    with open(folder / f"{pool}-images.npy", "wb") as file:
        header = {"descr": "|u1", "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(file, header)
        for image in chain([first], islice(images, len(labels) - 1)):
            file.write(image.tobytes())
    np.save(folder / f"{pool}-labels.npy", np.asarray(labels, dtype=np.int64))
    return shape


def load(folder: Path) -> ImageData:
    """Return the data set in a folder, its arrays as read-only memory maps.

    Parameters
    ----------
    folder : Path
        A folder that `save` has filled.

    Raises
    ------
    ValueError
        A file is missing or is not what `save` wrote. The size of every file, the shapes, the types and
        the range of the labels are checked; single pixels are not, since that would mean reading all.
    """
    try:
        meta = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
        classes, mean, std = (tuple(meta[key]) for key in ("classes", "mean", "std"))
        train, test = (_map_pool(folder, pool, tuple(meta[pool]), len(classes)) for pool in _POOLS)
        columns = {
            name: np.load(folder / f"column-{number}.npy", mmap_mode="r")
            for number, name in enumerate(meta.get("columns", ()))
        }
        if any(values.shape != train.labels.shape for values in columns.values()):
            raise ValueError("a column has not a value for each image")
    except (OSError, EOFError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{folder}: not a saved data set ({error})") from error
    return ImageData(train, test, classes, mean, std, columns)


def load_pool(folder: Path, pool: str, shape: tuple[int, ...], num_classes: int) -> LabelledImages:
    """Return one pool as read-only memory maps.

    Parameters
    ----------
    folder : Path
        A folder that `save_pool` has written the pool into.
    pool : str
        The name of the pool.
    shape : tuple[int, ...]
        The shape that its images must have.
    num_classes : int
        Labels must be below it.

    Raises
    ------
    ValueError
        A file is missing or is not what `save_pool` wrote, as far as `load` checks it too.
    """
    try:
        return _map_pool(folder, pool, shape, num_classes)
    except (OSError, EOFError, ValueError) as error:
        raise ValueError(f"{folder}: not a saved pool ({error})") from error


def _map_pool(folder: Path, pool: str, shape: tuple[int, ...], num_classes: int) -> LabelledImages:
    """Return one pool as memory maps after checking them against the shape they must have."""
    images = np.load(folder / f"{pool}-images.npy", mmap_mode="r")
    labels = np.load(folder / f"{pool}-labels.npy", mmap_mode="r")
    if images.shape != shape or images.dtype != np.uint8:
        raise ValueError(f"{pool} images are {images.dtype} {images.shape}, not uint8 {shape}")
    if labels.shape != shape[:1] or labels.dtype != np.int64:
        raise ValueError(f"{pool} labels are {labels.dtype} {labels.shape}, not int64 {shape[:1]}")
    if labels.min() < 0 or labels.max() >= num_classes:
        raise ValueError(f"{pool} labels are not all in 0..{num_classes - 1}")
    return LabelledImages(images, labels)
