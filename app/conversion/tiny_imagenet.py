"""Tiny ImageNet: its validation images, whose classes a list has, become the test pool; its test set has no labels."""

from pathlib import Path, PurePath

from espalier.app.conversion.lists import text_of_list
from espalier.app.ground.errors import UserError, shown
from espalier.app.tasks.image_folder import folders_in, images_in

ANNOTATIONS = PurePath("val", "val_annotations.txt")
EXPECTED = f"expected is the unpacked tiny-imagenet-200, with train/<class>/images/*, val/images/* and {ANNOTATIONS}"


def tiny_imagenet_files(source: Path) -> dict[PurePath, Path]:
    """Return the images by their places in an image folder.

    Parameters
    ----------
    source : Path
        The unpacked archive's folder, that with ``train`` and ``val``.

    Raises
    ------
    UserError
        Something is missing, or the list of validation images and the images differ.
    """
    train, val = source / "train", source / "val" / "images"
    for folder in (source, train, val):
        if not folder.is_dir():
            raise UserError(f"{folder}: no such folder: {EXPECTED}")
    classes = folders_in(train)
    if not classes:
        raise UserError(f"{train}: holds no class folders: {EXPECTED}")
    files: dict[PurePath, Path] = {}
    for name in classes:
        folder = train / name / "images"
        images = images_in(folder) if folder.is_dir() else []
        if not images:
            raise UserError(f"{folder}: holds no images: {EXPECTED}")
        files |= {PurePath("train", name, image.name): image for image in images}
    class_of = _validation_classes(source / ANNOTATIONS, classes)
    images_of = {image.name: image for image in images_in(val)}
    for name in sorted(class_of.keys() ^ images_of.keys()):
        if name in class_of:
            raise UserError(f"{val / name}: no such image, and {source / ANNOTATIONS} lists it: {EXPECTED}")
        raise UserError(f"{val / name}: {source / ANNOTATIONS} does not list it: {EXPECTED}")
    return files | {PurePath("test", class_of[name], name): image for name, image in images_of.items()}


def _validation_classes(annotations: Path, classes: list[str]) -> dict[str, str]:
    """Return the class of every validation image by the image's name."""
    class_of = {}
    for number, line in enumerate(text_of_list(annotations, EXPECTED).splitlines(), 1):
        fields = line.split("\t")
        if len(fields) < 2 or fields[1] not in classes:
            raise UserError(
                f"{annotations}, line {number}: {shown(line)}: expected is an image's name, a tab, and a class of train"
            )
        class_of[fields[0]] = fields[1]
    if not class_of:
        raise UserError(f"{annotations}: lists no images: {EXPECTED}")
    return class_of
