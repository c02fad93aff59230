"""``espalier convert``: a published data set, as it is unpacked, made into an image folder."""

import signal
import sys
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path, PurePath

from rich.console import Console
from rich.progress import track

from espalier.app.conversion.folder import check_outside, made_as_a_whole, place, place_resized
from espalier.app.conversion.ham10000 import ham10000_files
from espalier.app.conversion.tiny_imagenet import tiny_imagenet_files
from espalier.app.ground.errors import UserError, bad_value
from espalier.app.ground.free_folder import check_free
from espalier.app.settings.values import path_of

HELP = """Make an image folder, train/<class>/* and test/<class>/*, of a data set as it is unpacked.

  espalier convert tiny-imagenet tiny-imagenet-200 ~/data/tiny-imagenet
  espalier convert ham10000 ~/downloads/ham10000 ~/data/ham10000 --split image --seed 1

A run reads it with dataset=image-folder data-dir=DEST. docs/data-and-models.md says more.
"""
LARGEST = 4096  # as of data.image-size

Files = Mapping[PurePath, Path]
Place = Callable[[Files, Path], Iterator[Path]]


def main(arguments: Sequence[str]) -> int:
    """Convert what a command line names and return the exit code."""
    options = _parser().parse_args(arguments)
    source, destination = options.source, options.destination
    try:
        source, destination = path_of("SRC", str(source)), path_of("DEST", str(destination))
        check_outside(destination, source)
        check_free(destination)
        if options.dataset == "tiny-imagenet":
            convert(tiny_imagenet_files(source), destination, partial(place, copy=options.copy))
        else:
            if not 0 < options.size <= LARGEST:
                raise bad_value("--size", options.size, f"a number of pixels from 1 to {LARGEST}")
            files = ham10000_files(source, options.split, options.seed)
            convert(files, destination, partial(place_resized, size=options.size))
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        where = error.filename2 or error.filename or destination
        print(f"error: {where}: can't be read or written ({error.strerror or error})", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"interrupted: {destination} was not made", file=sys.stderr)
        return 130
    return 0


def convert(files: Files, destination: Path, place: Place) -> None:
    """Make an image folder, show how far it is, and say what is in it.

    Parameters
    ----------
    files : Mapping[PurePath, Path]
        The images, by their places in the folder.
    destination : Path
        The folder; there may be an empty one.
    place : Callable[[Mapping[PurePath, Path], Path], Iterator[Path]]
        Puts images into a folder, one after the other.
    """
    with ended_as_by_hand(), made_as_a_whole(destination) as folder:
        for _ in track(place(files, folder), "converting", total=len(files), console=Console()):
            pass
    counts = [sum(where.parts[0] == pool for where in files) for pool in ("train", "test")]
    classes = {where.parts[1] for where in files}
    print(f"{counts[0]} images to train on, {counts[1]} to test on, {len(classes)} classes: {destination}")


@contextmanager
def ended_as_by_hand() -> Iterator[None]:
    """Let those signals that would end this process at once interrupt it, as Ctrl-C does."""
    ending = [one for one in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(one) is signal.SIG_DFL]
    try:
        for one in ending:
            signal.signal(one, signal.default_int_handler)
        yield
    finally:
        for one in ending:
            signal.signal(one, signal.SIG_DFL)


def _parser() -> ArgumentParser:
    parser = ArgumentParser("espalier convert", description=HELP, formatter_class=RawDescriptionHelpFormatter)
    datasets = parser.add_subparsers(dest="dataset", required=True, metavar="DATASET")
    tiny = datasets.add_parser("tiny-imagenet", help="the folder tiny-imagenet-200")
    ham = datasets.add_parser("ham10000", help="HAM10000_metadata.csv, and the images in one folder or two")
    for dataset in (tiny, ham):
        dataset.add_argument("source", type=Path, metavar="SRC", help="the folder that it was unpacked into")
        dataset.add_argument("destination", type=Path, metavar="DEST", help="the folder to make")
    tiny.add_argument("--copy", action="store_true", help="copy the files (default: hard links where that works)")
    ham.add_argument("--split", choices=("lesion", "image"), default="lesion", help="what 20%% of is tested on")
    ham.add_argument("--seed", type=int, default=0, help="decides which (default: 0)")
    ham.add_argument("--size", type=int, default=64, help="side of the images in pixels (default: 64)")
    return parser
