"""What a data set by name is: how it is loaded, and from where."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from espalier.app.ground.object_spec import ObjectSpec
from espalier.app.settings.sections import Data
from espalier.app.tasks.image_data import ImageData

CheckSize = Callable[[int, int, tuple[int, int, int], int], None]


@dataclass(frozen=True)
class Told:
    """What the settings tell of a data set that can't say it itself.

    Attributes
    ----------
    inputs : tuple[str, ...]
        Columns that a model gets; none: they are found.
    label : str
        The column to predict; empty: it is found.
    tokenizer : str
        Makes numbers of a text; a name on the Hugging Face hub, a folder or a ``tokenizer.json``.
    max_tokens : int
        Of each text.
    test_share : float
        Share of a pool that is not divided into training and test examples, to test on.
    seed : int
        Decides which.
    """

    inputs: tuple[str, ...] = ()
    label: str = ""
    tokenizer: str = ""
    max_tokens: int = 128
    test_share: float = 0.2
    seed: int = 0


def told_of(section: Data, seed: int) -> Told:
    """Return what the settings tell."""
    return Told(section.inputs.items, section.label, section.tokenizer, section.max_tokens, section.test_share, seed)


@dataclass(frozen=True)
class DataPlace:
    """Where a data set is, or goes.

    Attributes
    ----------
    spec : ObjectSpec
        The setting that names it.
    data_dir : Path or None
        The setting, absolute.
    cache_dir : Path
        The folder for decoded data, absolute.
    image_size : int
        The side in pixels that images are resized to; 0 keeps their size.
    check_size : Callable
        See `espalier.app.tasks.data.load_dataset`.
    told : Told
        What the settings tell besides.
    """

    spec: ObjectSpec
    data_dir: Path | None
    cache_dir: Path
    image_size: int
    check_size: CheckSize
    told: Told


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
    resizes : bool
        Its images may be of any size.
    may_be_whole : bool
        It may be one pool, to be divided into training and test examples.
    """

    name: str
    load: Callable[[DataPlace], ImageData]
    model: str = "cnn"
    is_folder: bool = False
    resizes: bool = False
    may_be_whole: bool = False
