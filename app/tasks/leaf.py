"""FEMNIST, as LEAF writes it: JSON files of images by writer."""

import json
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from string import ascii_lowercase, ascii_uppercase, digits

import numpy as np

from espalier.app.ground.errors import FAULTS, UserError
from espalier.app.ground.object_spec import error_line
from espalier.app.tasks import image_data
from espalier.app.tasks.cache import fingerprint, load_or_build
from espalier.app.tasks.dataset import DataPlace, Dataset, Told
from espalier.app.tasks.held_out import train_and_test
from espalier.app.tasks.image_data import FORMAT_VERSION, ImageData, LabelledImages, classes_in

CLASSES = digits + ascii_uppercase + ascii_lowercase
SIDE = 28
WRITER = "user"
LAYOUT = "allowed is a folder with train/*.json and test/*.json, or all_data/*.json, as LEAF's femnist/preprocess.sh"


def femnist() -> Dataset:
    """Return it; who wrote an image is its column ``user``, by which partitioners can go."""
    return Dataset("femnist", _load, may_be_whole=True)


def _load(place: DataPlace) -> ImageData:
    root = place.data_dir
    if root is None:
        raise UserError(f"data-dir is not set: dataset = 'femnist' is read from LEAF's files: {LAYOUT} makes it")
    pools = [sorted((root / pool).glob("*.json")) for pool in ("train", "test")]
    whole = sorted((root / "all_data").glob("*.json"))
    if not all(pools) and not whole:
        raise UserError(f"{root}: holds no such files: {LAYOUT} makes it")
    told = place.told
    if all(pools):
        key = fingerprint(root, chain(*pools), str(root.resolve()), FORMAT_VERSION)
        build = partial(_build, pools)
    else:
        key = fingerprint(root, whole, str(root.resolve()), told.test_share, told.seed, FORMAT_VERSION)
        build = partial(_build_divided, whole, told)
    return load_or_build(place.cache_dir / f"femnist-{key}", build=build, load=image_data.load)


def _build(pools: Sequence[Sequence[Path]], folder: Path) -> None:
    train, test = map(_read, pools)
    try:
        classes_in(LabelledImages(*train[:2]), LabelledImages(*test[:2]), len(CLASSES))
    except ValueError as error:
        raise UserError(f"{pools[1][0]}: {error}: {LAYOUT} makes it") from None
    _save(folder, train, test)


def _build_divided(files: Iterable[Path], told: Told, folder: Path) -> None:
    pool = _read(files)
    _save(folder, *([part[rows] for part in pool] for rows in train_and_test(pool[1], told.test_share, told.seed)))


def _save(folder: Path, train: Iterable[np.ndarray], test: Iterable[np.ndarray]) -> None:
    train_images, train_labels, writers = train
    test_images, test_labels, _ = test
    image_data.save(
        folder,
        chain(train_images, test_images),
        train_labels=train_labels,
        test_labels=test_labels,
        classes=CLASSES,
        columns={WRITER: writers},
    )


def _read(files: Iterable[Path]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the images of some files, uint8 (N, 28, 28, 1), their labels and their writers."""
    files = list(files)
    found = [one for file in files for one in _writers_of(file)]
    if not any(len(labels) for _, labels, _ in found):
        raise UserError(f"{files[0]}: has no images: {LAYOUT} makes files that have")
    images, labels = (np.concatenate([one[i] for one in found]) for i in range(2))
    return images, labels, np.repeat([writer for *_, writer in found], [len(one[1]) for one in found])


def _writers_of(file: Path) -> Iterator[tuple[np.ndarray, np.ndarray, str]]:
    """Yield each writer's images and labels in a file."""
    try:
        content = json.loads(file.read_bytes())
        if len({*content["users"]}) < len(content["users"]):
            raise ValueError("a writer is among its users twice")
        for writer in content["users"]:
            own = content["user_data"][writer]
            labels = np.array(own["y"]).reshape(len(own["y"]))
            if labels.dtype.kind == "f" and (labels != np.rint(labels)).any():
                raise ValueError(f"{writer} has labels that are no whole numbers")
            labels = labels.astype(np.int64)
            pixels = np.array(own["x"], dtype=np.float64).reshape(len(labels), SIDE, SIDE, 1)
            if not (((pixels >= 0) & (pixels <= 1)).all() and ((labels >= 0) & (labels < len(CLASSES))).all()):
                raise ValueError(f"{writer} has pixels that are not from 0 to 1, or labels not below {len(CLASSES)}")
            yield np.rint(pixels * 255).astype(np.uint8), labels, str(writer)
    except FAULTS as error:
        reason = f"cannot be read as LEAF's FEMNIST ({error_line(error)})"
        raise UserError(f"{file}: {reason}: {LAYOUT} makes it") from None
