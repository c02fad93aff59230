"""The data sets by name: where each comes from and how it becomes `ImageData`."""

from collections.abc import Sequence
from pathlib import Path
from shutil import disk_usage

import numpy as np

from espalier.app.ground.errors import UserError, bad_value
from espalier.app.ground.object_spec import HUB, ObjectSpec
from espalier.app.ground.registered import built_in
from espalier.app.settings.dataset_source import parse_dataset
from espalier.app.settings.sections import VIDEO_CACHING
from espalier.app.tasks import image_data, image_folder
from espalier.app.tasks.cache import fingerprint, load_or_build
from espalier.app.tasks.dataset import CheckSize, DataPlace, Dataset, Told
from espalier.app.tasks.held_out import train_and_test
from espalier.app.tasks.hub_images import load_hub_images
from espalier.app.tasks.image_data import FORMAT_VERSION, ImageData, LabelledImages
from espalier.app.tasks.image_folder import Listing
from espalier.app.tasks.leaf import femnist
from espalier.app.tasks.medmnist import medmnist_sets
from espalier.app.tasks.own_data import load_own
from espalier.app.tasks.torchvision_data import torchvision_sets

__all__ = ["DATASETS", "ImageData", "LabelledImages", "load_dataset", "load_pool"]


def load_dataset(
    name: ObjectSpec | str,
    *,
    data_dir: Path | None,
    cache_dir: Path,
    image_size: int = 0,
    check_size: CheckSize = lambda *size: None,
    told: Told = Told(),  # noqa: B008, a frozen value
) -> ImageData:
    """Return a data set.

    Each is decoded once, into a folder of `cache_dir` that is keyed by the files' names, sizes and times; from
    then on its arrays are read-only memory maps, which open at once and which processes share.

    Parameters
    ----------
    name : ObjectSpec or str
        One of `DATASETS`, images of a library's (``hf:ORG/NAME``, see `espalier.app.tasks.hub`), or a function of a
        user's own, see `espalier.app.tasks.own_data.load_own`; what that returns is not kept on disk.
    data_dir : Path or None
        The folder with the files: for ``image-folder`` the one that holds ``train`` and ``test``, or classes; for
        torchvision's sets the one they are downloaded to where they are missing, by default
        ``cache_dir/downloads``. ``digits`` comes with scikit-learn and needs none.
    cache_dir : Path
        The folder for decoded data, created where missing.
    image_size : int, default 0
        For ``image-folder`` and sets of a library's: resize every image to a square of so many pixels a side; 0 keeps
        the size.
    check_size : Callable, optional
        For these too: called before anything is decoded with the number of images to train and to test on,
        their shape (C, H, W), and the number of classes.
    told : Told, optional
        What the settings tell besides.

    Raises
    ------
    UserError
        A value is not allowed, files are missing, damaged or cannot be downloaded, or `cache_dir`
        cannot be written.
    """
    try:
        spec = parse_dataset(name)
    except ValueError as error:
        raise bad_value("dataset", name, str(error)) from None
    dataset = _SOURCES.get(spec.module) or built_in(spec, _DATASETS)
    if image_size < 0:
        raise bad_value("data.image-size", image_size, "a side in pixels, or 0 to keep the size")
    if image_size and not (dataset and dataset.resizes):
        raise bad_value("data.image-size", image_size, f"0 where dataset = {spec.text!r}")
    # Absolute, since messages name these folders and a run's working directory is seldom the user's.
    cache_dir, data_dir = cache_dir.expanduser().absolute(), data_dir and data_dir.expanduser().absolute()
    if dataset is None:
        return load_own(spec, data_dir)
    return dataset.load(DataPlace(spec, data_dir, cache_dir, image_size, check_size, told))


def dataset_named(spec: ObjectSpec) -> Dataset | None:
    """Return the data set of images of a name, None for others: a user's own and requests for videos.

    Raises
    ------
    UserError
        If there is none of the name.
    """
    return _SOURCES.get(spec.module) or built_in(spec, {**_DATASETS, VIDEO_CACHING: None})


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
    told, divided = place.told, tuple[float, ...]()
    if listing.is_whole:
        listing, divided = _divided(listing, told), (told.test_share, told.seed)
    files = listing.train + listing.test
    width, height = (image_size, image_size) if image_size else image_folder.size_of(files[0])
    place.check_size(len(listing.train), len(listing.test), (3, height, width), len(listing.classes))

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
    key = fingerprint(root, files, str(root.resolve()), image_size, FORMAT_VERSION, *divided)
    return load_or_build(place.cache_dir / f"image-folder-{key}", build=build, load=image_data.load)


def _divided(listing: Listing, told: Told) -> Listing:
    """Return a listing whose images are divided by the seed."""
    train, test = train_and_test(listing.train_labels, told.test_share, told.seed)
    if not len(test):
        raise UserError(
            f"{listing.train[0].parent.parent}: holds one image of each class: allowed are more, to test on"
        )
    files, labels = listing.train, listing.train_labels
    return Listing(listing.classes, [files[i] for i in train], [files[i] for i in test], labels[train], labels[test])


def _refuse_without_room(folder: Path, num_bytes: int) -> None:
    """Raise UserError if the disk has no room for decoded images."""
    if num_bytes > (free := disk_usage(folder).free):
        allowed = (
            f"{num_bytes:,} bytes for the decoded images, {free:,} are free: set data.cache-dir, or data.image-size"
        )
        raise UserError(f"{folder.parent.parent}: has no room for {allowed}")


_DATASETS = {
    dataset.name: dataset
    for dataset in (
        Dataset("digits", _load_digits, model="small-cnn"),
        *torchvision_sets(),
        femnist(),
        *medmnist_sets(),
        Dataset("image-folder", _load_folder, is_folder=True, resizes=True, may_be_whole=True),
    )
}
# Those of a library, by the word in front of a colon: ``hf:ORG/NAME``.
_SOURCES = {HUB: Dataset(HUB, load_hub_images, resizes=True, may_be_whole=True)}

DATASETS = tuple(_DATASETS)
