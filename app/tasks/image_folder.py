"""Images in folders: ``<root>/train/<class>/*`` and ``<root>/test/<class>/*``, or ``<root>/<class>/*`` alone."""

import logging
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from pathlib import Path

import numpy as np
from PIL import Image

from espalier.app.ground.errors import UserError

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".webp", ".tif", ".tiff")
LAYOUT = "allowed is a folder with train/<class>/* and test/<class>/*"
LAYOUTS = f"{LAYOUT}, or with <class>/* alone"
FILES = f"allowed are files named *{', *'.join(SUFFIXES)}"

_log = logging.getLogger("espalier")

_WINDOW = 256  # images decoded ahead of the reader, which bounds the memory
_RUN = 16  # images per task of a thread: small ones cost less than the hand-over between threads
_PROGRESS_SECONDS = 10.0


@dataclass(frozen=True)
class Listing:
    """The images of a folder, before any is read.

    Attributes
    ----------
    classes : tuple[str, ...]
        The names of the class folders in ``train``, sorted.
    train, test : list[Path]
        The image files, sorted by class and then by name.
    train_labels, test_labels : np.ndarray
        ``int64``: the index in `classes` of each file.
    """

    classes: tuple[str, ...]
    train: list[Path]
    test: list[Path]
    train_labels: np.ndarray
    test_labels: np.ndarray

    @property
    def is_whole(self) -> bool:
        """The folder has no ``train`` and ``test``: all images are in `train`, to be divided."""
        return not self.test


def list_images(root: Path) -> Listing:
    """List a folder's images and classes.

    Everything hidden is passed over. What else is no image by its name, which ends in one of `SUFFIXES` (in any
    case), is left out, and the log says so.

    Parameters
    ----------
    root : Path
        The folder that holds ``train`` and ``test``, or the class folders.

    Raises
    ------
    UserError
        `root`, or one of ``train`` and ``test``, is missing or has no class folders, a class folder has no images,
        or ``test`` has a class that ``train`` lacks.
    """
    if not root.is_dir():
        raise UserError(f"{root}: no such folder: {LAYOUTS}")
    if not {"train", "test"} & (names := set(folders_in(root))) and names:
        classes = sorted(names)
        _check_names(root, classes)
        files, labels = _list_pool(root, classes, classes)
        return Listing(tuple(classes), files, [], labels, labels[:0])
    for folder in (root / "train", root / "test"):
        if not folder.is_dir():
            raise UserError(f"{folder}: no such folder: {LAYOUTS}")
    classes = _class_folders(root / "train")
    _check_names(root / "train", classes)
    test_classes = _class_folders(root / "test")
    for name in test_classes:
        if name not in classes:
            raise UserError(f"{root / 'test' / name}: class {name!r} has no folder in {root / 'train'}")
    train, train_labels = _list_pool(root / "train", classes, classes)
    test, test_labels = _list_pool(root / "test", test_classes, classes)
    return Listing(tuple(classes), train, test, train_labels, test_labels)


def list_pool(pool: Path, classes: Sequence[str]) -> tuple[list[Path], np.ndarray]:
    """List the images of one pool whose classes are known beforehand; it may lack some of them, or all.

    Parameters
    ----------
    pool : Path
        The folder that holds the class folders; where it is missing there are no images.
    classes : Sequence[str]
        The names of the classes, by label.

    Returns
    -------
    tuple[list[Path], np.ndarray]
        The image files, in the order of `classes` and then by name, and their labels, ``int64``.

    Raises
    ------
    UserError
        There is a folder of another name.
    """
    names = folders_in(pool) if pool.is_dir() else []
    for name in names:
        if name not in classes:
            raise UserError(f"{pool / name}: class {name!r} is not one of the run's: allowed are {', '.join(classes)}")
    if names:
        _log_left_out(pool, names)
    found = [(label, file) for label, name in enumerate(classes) if name in names for file in images_in(pool / name)]
    return [file for _, file in found], np.array([label for label, _ in found], dtype=np.int64)


def folders_in(pool: Path) -> list[str]:
    """Return the sorted names of the folders in ``train`` or ``test``."""
    return sorted(entry.name for entry in _visible(pool) if entry.is_dir())


def _class_folders(pool: Path) -> list[str]:
    """Return the sorted names of the class folders in ``train`` or ``test``, of which there must be some."""
    names = folders_in(pool)
    if not names:
        raise UserError(f"{pool}: holds no class folders: {LAYOUT}")
    return names


def _check_names(pool: Path, names: Iterable[str]) -> None:
    """Raise UserError if names of class folders, which go into the results' files, can't be written there."""
    for name in names:
        try:
            name.encode()
        except UnicodeEncodeError:
            raise UserError(f"{pool}: allowed are class folders whose names are UTF-8, not {name!r}") from None


def _list_pool(pool: Path, names: list[str], classes: list[str]) -> tuple[list[Path], np.ndarray]:
    """Return the image files in the class folders called `names`, with their labels."""
    files: list[Path] = []
    counts = []
    for name in names:
        images = images_in(pool / name)
        if not images:
            raise UserError(f"{pool / name}: holds no images: {FILES}")
        files += images
        counts.append(len(images))
    _log_left_out(pool, names)
    labels = np.array([classes.index(name) for name in names], dtype=np.int64)
    return files, np.repeat(labels, counts)


def images_in(folder: Path) -> list[Path]:
    """Return the image files in a class folder, sorted by name."""
    entries = [entry for entry in _visible(folder) if _is_image(entry)]
    for entry in entries:
        if not entry.is_file():
            raise UserError(f"{entry.path!r}: is no file; allowed are images")
    return [folder / name for name in sorted(entry.name for entry in entries)]


def _is_image(entry: os.DirEntry[str]) -> bool:
    return entry.name.lower().endswith(SUFFIXES)


def _log_left_out(pool: Path, names: Sequence[str]) -> None:
    """Say what is in a pool and its class folders, and is no image of a class."""
    left_out = [entry.name for entry in _visible(pool) if not entry.is_dir()]
    left_out += [f"{name}/{entry.name}" for name in names for entry in _visible(pool / name) if not _is_image(entry)]
    if left_out:
        what = f"{len(left_out)} entries are" if len(left_out) > 1 else "1 entry is"
        _warn_once(f"{pool}: {what} left out, such as {min(left_out)}: {FILES}, in the folder of a class")


@lru_cache
def _warn_once(line: str) -> None:
    _log.warning(line)


def _visible(folder: Path) -> list[os.DirEntry[str]]:
    """Return what is in a folder, without hidden entries such as ``.DS_Store``."""
    try:
        with os.scandir(folder) as entries:
            return [entry for entry in entries if not entry.name.startswith(".")]
    except OSError as error:
        raise UserError(f"{folder}: cannot be read ({error.strerror})") from error


def size_of(file: Path) -> tuple[int, int]:
    """Return an image's width and height, which its header has.

    Raises
    ------
    UserError
        As for `decode_image`.
    """
    try:
        with Image.open(file) as image:
            return image.size
    except Exception as error:
        raise _unreadable(file, error) from error


def decode_image(file: Path, image_size: int) -> np.ndarray:
    """Read one image whole.

    Parameters
    ----------
    file : Path
        The image file. Grey, palette and transparent images are turned into RGB ones.
    image_size : int
        0 keeps the size; otherwise the image is resized, bilinear, to a square of so many pixels a side.

    Returns
    -------
    np.ndarray
        ``uint8``, shape ``(height, width, 3)``.

    Raises
    ------
    UserError
        The file is damaged, cut short or unreadable, or has more than 8 bits per channel or more than one page.
    """
    try:
        with Image.open(file) as image:
            mode = deep_mode(image)
            pages = getattr(image, "n_frames", 1) if image.format == "TIFF" else 1
            rgb = image.convert("RGB")
    except Exception as error:  # Pillow's decoders tell of damage by exceptions of a dozen kinds
        raise _unreadable(file, error) from error
    if mode:  # Pillow would clip them, or keep half of their bits
        raise UserError(f"{file}: has pixels of mode {mode}: allowed are images of 8 bits per channel")
    if pages > 1:
        raise UserError(f"{file}: has {pages} pages: allowed are images of one")
    if image_size:
        rgb = rgb.resize((image_size, image_size), Image.Resampling.BILINEAR)
    return np.asarray(rgb)


def deep_mode(image: Image.Image) -> str:
    """Return the mode of an image that has more than 8 bits per channel, before it is loaded; of others nothing."""
    if image.mode[0] in "IF":
        return image.mode
    tiles = getattr(image, "tile", ())  # what its file holds, which only images from a file have
    raw = [str(own) for *_, given in tiles for own in (given if isinstance(given, tuple) else (given,))]
    return next((own for own in raw if ";16" in own and own != "BGR;16"), "")  # that has 16 bits in all


def decode_images(files: list[Path], image_size: int) -> Iterator[np.ndarray]:
    """Yield the images of `files` in order, decoded by a few threads, and log the progress now and then.

    Parameters
    ----------
    files : list[Path]
        The image files.
    image_size : int
        As for `decode_image`.

    Yields
    ------
    np.ndarray
        ``uint8``, shape ``(height, width, 3)``, the same for all.

    Raises
    ------
    UserError
        As for `decode_image`; or `image_size` is 0 and an image's size differs from the first one's.
    """

    def decode_run(run: list[Path]) -> list[np.ndarray]:
        return [decode_image(file, image_size) for file in run]

    shape = None
    began = logged = time.monotonic()
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as threads:
        for window in range(0, len(files), _WINDOW):
            ahead = files[window : window + _WINDOW]
            runs = [ahead[start : start + _RUN] for start in range(0, len(ahead), _RUN)]
            images = chain.from_iterable(list(threads.map(decode_run, runs)))
            for file, image in zip(ahead, images, strict=True):
                shape = shape or image.shape
                if image.shape != shape:
                    raise UserError(
                        f"{file}: is {_size(image.shape)}, {files[0]} is {_size(shape)} (width x height): "
                        "set data.image-size to resize all images to one size"
                    )
                yield image
            now = time.monotonic()
            if now - logged >= _PROGRESS_SECONDS:
                logged = now
                done = window + len(ahead)
                left = (now - began) / done * (len(files) - done)
                _log.info("decoded %d of %d images, about %.0f s left", done, len(files), left)


def _unreadable(file: Path, error: Exception) -> UserError:
    reason = " ".join(str(error).split())
    return UserError(f"{file}: cannot be read as an image ({reason}): replace or remove it")


def _size(shape: tuple[int, ...]) -> str:
    """Return an image's size as users know it."""
    return f"{shape[1]}x{shape[0]}"
