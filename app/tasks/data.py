"""The data sets by name: where each comes from and how it becomes `ImageData`."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from shutil import disk_usage
from typing import TYPE_CHECKING

import numpy as np

from espalier.app.ground.errors import UserError, bad_value
from espalier.app.ground.object_spec import ObjectSpec
from espalier.app.ground.registered import built_in, parse_registered
from espalier.app.settings.sections import VIDEO_CACHING
from espalier.app.tasks import image_data, image_folder
from espalier.app.tasks.cache import fingerprint, load_or_build
from espalier.app.tasks.image_data import FORMAT_VERSION, ImageData, LabelledImages
from espalier.app.tasks.own_data import load_own

if TYPE_CHECKING:
    from torchvision.datasets import VisionDataset

__all__ = ["DATASETS", "ImageData", "LabelledImages", "load_dataset", "load_pool"]

CheckSize = Callable[[int, int, int, int, int], None]


@dataclass(frozen=True)
class DataPlace:
    """Where a data set is, or goes.

    Attributes
    ----------
    data_dir : Path or None
        The setting, absolute.
    cache_dir : Path
        The folder for decoded data, absolute.
    image_size : int
        The side in pixels that images are resized to; 0 keeps their size.
    check_size : Callable
        See `load_dataset`.
    """

    data_dir: Path | None
    cache_dir: Path
    image_size: int
    check_size: CheckSize


@dataclass(frozen=True)
class Dataset:
    """A data set by name.

    Attributes
    ----------
    name : str
        As the settings have it.
    load : Callable[[DataPlace], ImageData]
        Returns it.
    model : str
        What ``model = "auto"`` is for it.
    is_folder : bool
        It is a folder of the user's, ``data-dir``, with images of any size.
    """

    name: str
    load: Callable[[DataPlace], ImageData]
    model: str = "cnn"
    is_folder: bool = False


def load_dataset(
    name: ObjectSpec | str,
    *,
    data_dir: Path | None,
    cache_dir: Path,
    image_size: int = 0,
    check_size: CheckSize = lambda *size: None,
) -> ImageData:
    """Return a data set.

    Each is decoded once, into a folder of `cache_dir` that is keyed by the files' names, sizes and times; from
    then on its arrays are read-only memory maps, which open at once and which processes share.

    Parameters
    ----------
    name : ObjectSpec or str
        One of `DATASETS`, or a function of a user's own, see `espalier.app.tasks.own_data.load_own`; what that returns
        is not kept on disk.
    data_dir : Path or None
        The folder with the files: for ``image-folder`` the one that holds ``train`` and ``test``; for
        torchvision's sets the one they are downloaded to where they are missing, by default
        ``cache_dir/downloads``. ``digits`` comes with scikit-learn and needs none.
    cache_dir : Path
        The folder for decoded data, created where missing.
    image_size : int, default 0
        For ``image-folder``: resize every image to a square of so many pixels a side; 0 keeps the size.
    check_size : Callable, optional
        For ``image-folder``: called before anything is decoded with the number of images to train and to test on,
        their height and width, and the number of classes.

    Raises
    ------
    UserError
        A value is not allowed, files are missing, damaged or cannot be downloaded, or `cache_dir`
        cannot be written.
    """
    try:
        spec = parse_registered("dataset", name)
    except ValueError as error:
        raise bad_value("dataset", name, str(error)) from None
    dataset = built_in(spec, _DATASETS)
    if image_size < 0:
        raise bad_value("data.image-size", image_size, "a side in pixels, or 0 to keep the size")
    if image_size and not (dataset and dataset.is_folder):
        raise bad_value("data.image-size", image_size, f"0 where dataset = {spec.text!r}")
    # Absolute, since messages name these folders and a run's working directory is seldom the user's.
    cache_dir, data_dir = cache_dir.expanduser().absolute(), data_dir and data_dir.expanduser().absolute()
    return dataset.load(DataPlace(data_dir, cache_dir, image_size, check_size)) if dataset else load_own(spec, data_dir)


def dataset_named(spec: ObjectSpec) -> Dataset | None:
    """Return the data set of images of a name, None for others: a user's own and requests for videos.

    Raises
    ------
    UserError
        If there is none of the name.
    """
    return built_in(spec, {**_DATASETS, VIDEO_CACHING: None})


def load_pool(pool: Path, *, classes: Sequence[str], image_size: int, cache_dir: Path) -> LabelledImages:
    """Return the images of one pool, ``<root>/train`` or ``<root>/test``, whose classes are known beforehand.

    They are kept in `cache_dir` as those of `load_dataset` are, each folder's by themselves.

    Parameters
    ----------
    pool : Path
        The folder that holds the class folders, absolute. It may lack classes; where it is missing or holds no images
        the pool is empty.
    classes : Sequence[str]
        The names of the classes, by label.
    image_size : int
        Every image is resized to a square of so many pixels a side, more than 0.
    cache_dir : Path
        The folder for decoded data, created where missing.

    Raises
    ------
    UserError
        There is a class that is not in `classes`, an image is damaged, or `cache_dir` cannot be written.
    """
    files, labels = image_folder.list_pool(pool, classes)
    shape = (len(files), image_size, image_size, 3)
    if not files:
        return LabelledImages(_frozen(np.zeros(shape, dtype=np.uint8)), _frozen(labels))

    def build(folder: Path) -> None:
        image_data.save_pool(folder, pool.name, image_folder.decode_images(files, image_size), labels)

    def load(folder: Path) -> LabelledImages:
        return image_data.load_pool(folder, pool.name, shape, len(classes))

    # Many devices name their files alike, so that only the folder's own path tells two of them apart for sure.
    key = fingerprint(pool, files, str(pool), tuple(classes), image_size, FORMAT_VERSION)
    return load_or_build(cache_dir.expanduser().absolute() / f"image-pool-{key}", build=build, load=load)


def _load_digits(place: DataPlace) -> ImageData:
    """Return scikit-learn's digits."""
    return load_or_build(place.cache_dir / f"digits-{FORMAT_VERSION}", build=_build_digits, load=image_data.load)


def _build_digits(folder: Path) -> None:
    """Write scikit-learn's 1,797 digits, 8x8 and grey, into `folder`: 1,437 to train on and 360 to test on."""
    # Not at the top: it takes a second, which every process of a deployed client would spend.
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    pixels, labels = load_digits(return_X_y=True)
    images = np.rint(pixels * (255 / 16)).astype(np.uint8).reshape(-1, 8, 8, 1)
    # The split is part of the data set, as it is in the others: it depends on no seed of a run.
    pools = train_test_split(np.arange(len(labels)), test_size=0.2, stratify=labels, random_state=0)
    train, test = map(np.sort, pools)
    image_data.save(
        folder, images[[*train, *test]], train_labels=labels[train], test_labels=labels[test], classes="0123456789"
    )


def _frozen(array: np.ndarray) -> np.ndarray:
    """Make an array read-only and return it."""
    array.setflags(write=False)
    return array


def _load_folder(place: DataPlace) -> ImageData:
    """Return the images of a folder, from the cache where nothing in the folder has changed."""
    root, image_size = place.data_dir, place.image_size
    if root is None:
        raise UserError("data-dir is not set: dataset = 'image-folder' needs a folder with train/ and test/ in it")
    listing = image_folder.list_images(root)
    files = listing.train + listing.test
    width, height = (image_size, image_size) if image_size else image_folder.size_of(files[0])
    place.check_size(len(listing.train), len(listing.test), height, width, len(listing.classes))

    def build(folder: Path) -> None:
        _refuse_without_room(folder, len(files) * width * height * 3)
        image_data.save(
            folder,
            image_folder.decode_images(files, image_size),
            train_labels=listing.train_labels,
            test_labels=listing.test_labels,
            classes=listing.classes,
        )

    # Names, sizes and times alone don't tell two folders apart: uncompressed images are of one size.
    key = fingerprint(root, files, str(root.resolve()), image_size, FORMAT_VERSION)
    return load_or_build(place.cache_dir / f"image-folder-{key}", build=build, load=image_data.load)


def _refuse_without_room(folder: Path, num_bytes: int) -> None:
    """Raise UserError if the disk has no room for decoded images."""
    if num_bytes > (free := disk_usage(folder).free):
        allowed = (
            f"{num_bytes:,} bytes for the decoded images, {free:,} are free: set data.cache-dir, or data.image-size"
        )
        raise UserError(f"{folder.parent.parent}: has no room for {allowed}")


def _torchvision(name: str, kind: str, files: str) -> Dataset:
    """Return one of torchvision's data sets: its class there, and where below data-dir its files are."""
    return Dataset(name, partial(_load_torchvision, name, kind, files))


def _load_torchvision(name: str, kind: str, files: str, place: DataPlace) -> ImageData:
    """Return one of torchvision's data sets, downloaded where its files are missing or damaged."""
    data_dir = place.data_dir or place.cache_dir / "downloads"
    folder = data_dir / files

    def open_pools() -> "list[VisionDataset]":
        return _open_torchvision(name, kind, folder, data_dir)

    if not folder.is_dir():
        open_pools()
    key = fingerprint(folder, (entry for entry in folder.iterdir() if entry.is_file()), FORMAT_VERSION)
    build = partial(_build_torchvision, open_pools)
    return load_or_build(place.cache_dir / f"{name}-{key}", build=build, load=image_data.load)


def _build_torchvision(open_pools: "Callable[[], list[VisionDataset]]", folder: Path) -> None:
    """Write one of torchvision's data sets into `folder`."""
    train, test = open_pools()
    images = (np.asarray(pool.data).reshape(*pool.data.shape[:3], -1) for pool in (train, test))
    image_data.save(
        folder,
        chain.from_iterable(images),
        train_labels=np.asarray(train.targets),
        test_labels=np.asarray(test.targets),
        classes=train.classes,
    )


def _open_torchvision(name: str, kind: str, folder: Path, data_dir: Path) -> "list[VisionDataset]":
    """Return torchvision's training and test pool; it downloads what is missing or damaged."""
    from espalier.app.tasks.torchvision_compat import torchvision

    dataset = getattr(torchvision.datasets, kind)
    try:
        return [dataset(data_dir, train=train, download=True) for train in (True, False)]
    except Exception as error:  # no network, a damaged archive, a full disk: torchvision raises many kinds
        reason = " ".join(str(error).split())
        raise UserError(
            f"dataset = {name!r}: cannot be downloaded or read ({reason}): "
            f"put its files into {folder} or set data-dir to where they are"
        ) from error


_DATASETS = {
    dataset.name: dataset
    for dataset in (
        Dataset("digits", _load_digits, model="small-cnn"),
        _torchvision("cifar10", "CIFAR10", "cifar-10-batches-py"),
        _torchvision("cifar100", "CIFAR100", "cifar-100-python"),
        _torchvision("fashion-mnist", "FashionMNIST", "FashionMNIST/raw"),
        Dataset("image-folder", _load_folder, is_folder=True),
    )
}

DATASETS = tuple(_DATASETS)
