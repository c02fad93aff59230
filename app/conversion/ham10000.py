"""HAM10000: photographs of skin lesions, several of many a lesion, with no division of their own."""

import csv
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from filecmp import cmp
from io import StringIO
from pathlib import Path, PurePath
from typing import Literal

from espalier.app.conversion.lists import text_of_list
from espalier.app.ground.errors import UserError, shown
from espalier.app.tasks.image_folder import folders_in, images_in, size_of

METADATA = "HAM10000_metadata.csv"
AS_OFFERED = (METADATA, "HAM10000_metadata.tab", "HAM10000_metadata")  # by the source, of one content
PHOTOGRAPHS = (".jpg", ".jpeg")
COLUMNS = ("lesion_id", "image_id", "dx")
CLASSES = ("akiec", "bcc", "bkl", "df", "mel", "nv", "vasc")
TEST_SHARE = 0.2
EXPECTED = f"expected is a folder with {METADATA}, and the images <image_id>.jpg in it or in folders in it"

Split = Literal["lesion", "image"]


@dataclass(frozen=True)
class Photograph:
    """A line of the metadata.

    Attributes
    ----------
    lesion_id, image_id : str
        What is to be seen, and the image's name.
    dx : str
        The diagnosis, one of `CLASSES`.
    """

    lesion_id: str
    image_id: str
    dx: str


def ham10000_files(source: Path, split: Split, seed: int) -> dict[PurePath, Path]:
    """Return the images by their places in an image folder, 80 % to train on and 20 % to test on.

    Parameters
    ----------
    source : Path
        Holds the metadata, by one of the names in `AS_OFFERED`, and the images, in it or in folders in it. Images that
        the metadata lack are left out.
    split : "lesion" or "image"
        What is shared out; "lesion" keeps all images of a lesion together.
    seed : int
        Decides which.

    Raises
    ------
    UserError
        Something is missing, or the metadata are of another form.
    """
    if not source.is_dir():
        raise UserError(f"{source}: no such folder: {EXPECTED}")
    metadata = next((file for name in AS_OFFERED if (file := source / name).exists()), source / METADATA)
    photographs = read_metadata(metadata)
    images_of: dict[str, list[Path]] = {}
    for folder in (source, *(source / name for name in folders_in(source))):
        for image in images_in(folder):
            images_of.setdefault(image.stem, []).append(image)
    image_of = {p.image_id: photograph_of(images_of[p.image_id]) for p in photographs if p.image_id in images_of}
    missing = [photograph.image_id for photograph in photographs if photograph.image_id not in image_of]
    if missing:
        raise UserError(
            f"{source}: has no {missing[0]}.jpg; of the {len(photographs)} images in {metadata.name} "
            f"{len(missing)} are missing: {EXPECTED}"
        )
    tested = images_to_test_on(photographs, split, seed)
    if not tested:
        raise UserError(f"{metadata}: has no class with two or more of what is shared out, by {split}")
    return {
        PurePath("test" if p.image_id in tested else "train", p.dx, f"{p.image_id}.png"): image_of[p.image_id]
        for p in photographs
    }


def photograph_of(images: Sequence[Path]) -> Path:
    """Return the photograph of some images of one name: masks are no JPEG files, and small copies are smaller.

    Some unpack the same archive into two folders; UserError for two that differ in content alone.
    """
    if len(images) == 1:
        return images[0]
    candidates = [image for image in images if image.suffix.lower() in PHOTOGRAPHS] or images
    size_by_file = {image: math.prod(size_of(image)) for image in candidates}
    first, *others = [image for image in candidates if size_by_file[image] == max(size_by_file.values())]
    for other in others:
        if not cmp(first, other, shallow=False):
            raise UserError(
                f"{other}: is another image than {first}, of the same size: expected is one photograph of a name"
            )
    return first


def read_metadata(file: Path) -> list[Photograph]:
    """Return the lines of the metadata; UserError if they can't be read, or are of another form."""
    text = text_of_list(file, EXPECTED)
    lines = StringIO(text, newline="")
    try:
        table = csv.DictReader(lines, delimiter="\t" if "\t" in text.partition("\n")[0] else ",")
        lacking = [name for name in COLUMNS if name not in (table.fieldnames or ())]
        rows = list(table)
    except csv.Error as error:
        raise UserError(f"{file}: can't be read ({error}): {EXPECTED}") from None
    if lacking:
        raise UserError(f"{file}: has no column {lacking[0]}: expected are {', '.join(COLUMNS)}")
    photographs: dict[str, Photograph] = {}
    for number, row in enumerate(rows, 1):
        photograph = Photograph(*(row[name] or "" for name in COLUMNS))
        if not photograph.lesion_id or not photograph.image_id or photograph.dx not in CLASSES:
            given = ", ".join(f"{name} = {shown(row[name])}" for name in COLUMNS)
            raise UserError(f"{file}, image {number}: {given}: expected are two names, and as dx {', '.join(CLASSES)}")
        if photograph.image_id in photographs:
            twice = shown(photograph.image_id)[1:-1]
            raise UserError(f"{file}, image {number}: {twice} is listed twice: expected is once")
        photographs[photograph.image_id] = photograph
    if not photographs:
        raise UserError(f"{file}: lists no images: {EXPECTED}")
    return list(photographs.values())


def images_to_test_on(photographs: Sequence[Photograph], split: Split, seed: int) -> set[str]:
    """Return the ids of the images to test on: those of a fifth of every class's lesions, or a fifth of its images.

    It is at least one of a class that has two. The same seed chooses the same, in whatever order they are given.
    """

    def unit(photograph: Photograph) -> str:
        return photograph.lesion_id if split == "lesion" else photograph.image_id

    chosen: set[str] = set()
    for name in CLASSES:
        units = sorted({unit(photograph) for photograph in photographs if photograph.dx == name})
        count = max(round(TEST_SHARE * len(units)), 1) if len(units) > 1 else 0
        chosen |= set(random.Random(f"{seed}/{name}").sample(units, count))
    return {photograph.image_id for photograph in photographs if unit(photograph) in chosen}
