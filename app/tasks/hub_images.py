"""Images of a set of Hugging Face's ``datasets``, as the app's data sets are."""

from collections.abc import Iterator, Mapping
from io import BytesIO
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from espalier.app.ground.errors import FAULTS, UserError, bad_value
from espalier.app.ground.object_spec import error_line
from espalier.app.tasks import image_data
from espalier.app.tasks.cache import fingerprint, load_or_build
from espalier.app.tasks.dataset import DataPlace
from espalier.app.tasks.hub import IMAGES, INPUTS_KEY, HubSet, open_set
from espalier.app.tasks.image_data import FORMAT_VERSION, ImageData
from espalier.app.tasks.image_folder import deep_mode

if TYPE_CHECKING:
    from datasets import Dataset

ALLOWED = "a column of images, RGB or grey with 8 bits per channel"


def load_hub_images(place: DataPlace) -> ImageData:
    """Return the images of a set, from the cache where none of its files has changed."""
    opened = open_set(place.spec, place.told)
    if opened.kind != IMAGES:
        raise bad_value(place.spec.key, place.spec.text, f"a set of images, not {opened.kind}")
    (column,) = opened.inputs
    first = next(_images(opened.train.select(range(1)), column, None, place.image_size))
    height, width, channels = first.shape
    place.check_size(len(opened.train), len(opened.test), (channels, height, width), len(opened.classes))
    files = [Path(file["filename"]) for pool in (opened.train, opened.test) for file in pool.cache_files]
    # What `datasets` makes of what was done to a pool: with one of its own for tests, seeds share the cache.
    pools = (opened.train._fingerprint, opened.test._fingerprint)
    own = (place.spec.text, place.told.inputs, place.told.label, place.image_size)
    key = fingerprint(Path("/"), files, *pools, *own, FORMAT_VERSION)

    def build(folder: Path) -> None:
        _save(opened, column, channels, place.image_size, folder)

    return load_or_build(place.cache_dir / f"hf-{key}", build=build, load=image_data.load)


def _save(opened: HubSet, column: str, channels: int, size: int, folder: Path) -> None:
    pools = (_images(pool, column, channels, size) for pool in (opened.train, opened.test))
    image_data.save(
        folder,
        _of_one_size(chain.from_iterable(pools), column),
        train_labels=opened.train_labels,
        test_labels=opened.test_labels,
        classes=opened.classes,
        columns=opened.columns(),
    )


def _images(pool: "Dataset", column: str, channels: int | None, size: int) -> Iterator[np.ndarray]:
    only = pool.select_columns([column])
    files = _files_of(only, column)
    for row in range(len(only)):
        try:
            if files and (mode := _deep_mode(files[row][column])):
                raise UserError(f"has pixels of mode {mode}")
            image = only[row][column]
        except UserError as error:
            raise _refused(column, row, str(error)) from None
        except FAULTS as error:  # of an image that is damaged
            raise _refused(column, row, f"can't be read ({error_line(error)})") from None
        yield _pixels(image, column, row, size, channels)


def _files_of(pool: "Dataset", column: str) -> "Dataset | None":
    """Return a column of images as the files that they come from; None where it holds arrays."""
    from datasets import Image as OfFiles

    return pool.cast_column(column, OfFiles(decode=False)) if isinstance(pool.features[column], OfFiles) else None


def _deep_mode(file: Mapping[str, Any]) -> str:
    """Return the mode of a file's image with more than 8 bits per channel, of which the library keeps half."""
    if file["bytes"] is None and not Path(file["path"]).is_file():  # in an archive, which the library alone can open
        return ""
    with Image.open(file["path"] if file["bytes"] is None else BytesIO(file["bytes"])) as image:
        return deep_mode(image)


def _pixels(image: Any, column: str, row: int, size: int, channels: int | None) -> np.ndarray:
    """Return an image, uint8 (height, width, channels): grey where the first is, as all must be then, else RGB."""
    try:
        if not isinstance(image, Image.Image):
            array = np.asarray(image)
            array = array[..., 0] if array.shape[2:] == (1,) else array
            if array.dtype.kind not in "ui" or array.min() < 0 or array.max() > 255:
                raise UserError(f"holds {array.dtype} from {array.min()} to {array.max()}")
            image = Image.fromarray(array.astype(np.uint8))
        if image.mode[0] in "IF":  # Pillow would clip them
            raise UserError(f"has pixels of mode {image.mode}")
        if channels == 1 and image.mode not in ("1", "L"):
            raise UserError(f"is {image.mode}, and the first one is grey")
        is_grey = image.mode in ("1", "L") if channels is None else channels == 1
        image = image.convert("L" if is_grey else "RGB")
    except FAULTS as error:
        raise _refused(column, row, error_line(error)) from None
    if size:
        image = image.resize((size, size), Image.Resampling.BILINEAR)
    pixels = np.asarray(image)
    return pixels[..., None] if is_grey else pixels


def _refused(column: str, row: int, reason: str) -> UserError:
    return bad_value(INPUTS_KEY, column, f"{ALLOWED}: row {row} {reason}")


def _of_one_size(images: Iterator[np.ndarray], column: str) -> Iterator[np.ndarray]:
    first = None
    for image in images:
        first = first or image.shape
        if image.shape != first:
            sizes = f"{image.shape[1]}x{image.shape[0]} and {first[1]}x{first[0]}"
            allowed = f"a side in pixels for the images of {column!r}, which are {sizes} (width x height)"
            raise bad_value("data.image-size", 0, allowed)
        yield image
