"""The image folder that a conversion makes: it is there as a whole, or not at all."""

import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path, PurePath

from PIL import Image

from espalier.app.ground.durable import PART
from espalier.app.ground.errors import UserError
from espalier.app.tasks.image_folder import decode_images, size_of


def check_outside(destination: Path, source: Path) -> None:
    """Raise UserError where a folder would be made inside of what it is made from."""
    if destination.resolve().is_relative_to(source.resolve()):
        raise UserError(f"{destination}: lies in {source}: expected is a folder outside of it")


@contextmanager
def made_as_a_whole(destination: Path) -> Iterator[Path]:
    """Give a new folder beside `destination`, which becomes it if the block ends well and else is removed."""
    destination = destination.resolve()
    part = destination.with_name(f".{destination.name}.{os.getpid()}{PART}")
    part.mkdir(parents=True)
    try:
        yield part
        part.replace(destination)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise


def place(files: Mapping[PurePath, Path], folder: Path, *, copy: bool) -> Iterator[Path]:
    """Put files into a folder: as hard links where the file system has them, unless copies are asked for.

    Parameters
    ----------
    files : Mapping[PurePath, Path]
        The files to take, by their places in the folder.
    folder : Path
        Gets the files.
    copy : bool
        Make no links.

    Yields
    ------
    Path
        A file that is in its place.
    """
    for where, source in files.items():
        target = _target(folder, where)
        if source.is_symlink():
            size_of(source)  # refuses what is no image: a link can lead to any file, whose content would be copied
        try:
            if copy or source.is_symlink():  # the link would be one to the symbolic link
                shutil.copyfile(source, target)
            else:
                os.link(source, target)
        except OSError:  # another file system, or one without links; a real fault shows once more
            shutil.copyfile(source, target)
        yield target


def place_resized(files: Mapping[PurePath, Path], folder: Path, size: int) -> Iterator[Path]:
    """Put images into a folder, as PNG files of `size` x `size` pixels; otherwise as `place`.

    The pixels are those that a run makes of the originals with ``data.image-size = size``.
    """
    for where, pixels in zip(files, decode_images(list(files.values()), size), strict=True):
        target = _target(folder, where)
        Image.fromarray(pixels).save(target)
        yield target


def _target(folder: Path, where: PurePath) -> Path:
    """Return a file's place, in a folder that exists."""
    target = folder / where
    target.parent.mkdir(parents=True, exist_ok=True)
    return target
