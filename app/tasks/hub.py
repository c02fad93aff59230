"""Sets of Hugging Face's ``datasets``: opened, with their columns found, and divided into two pools.

Images become `ImageData` (`hub_images`), texts and tables examples of tensors (`hub_examples`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from espalier.app.ground.errors import FAULTS, bad_value
from espalier.app.ground.object_spec import ObjectSpec, error_line
from espalier.app.ground.registered import load_built_in
from espalier.app.settings.dataset_source import folder_of
from espalier.app.tasks.dataset import Told
from espalier.app.tasks.held_out import train_and_test
from espalier.clients.messages.profile import MOST_CLASSES

if TYPE_CHECKING:
    from datasets import Dataset, DatasetDict

TESTS = ("test", "validation", "valid", "val", "dev", "eval")
LABELS = ("label", "labels", "target", "class", "y", "fine_label", "coarse_label", "character", "digit")
IMAGES, TEXT, TABLE = "images", "text", "a table"
INPUTS_KEY, LABEL_KEY, TOKENIZER_KEY = "data.inputs", "data.label", "data.tokenizer"
LONGEST = 64  # characters of a column's texts that partitioners may go by


@dataclass(frozen=True)
class HubSet:
    """A set that is open.

    Attributes
    ----------
    train, test : datasets.Dataset
        The two pools.
    train_labels, test_labels : np.ndarray
        ``int64``, shape ``(N,)``.
    classes : tuple[str, ...]
        The name of each class, by label.
    kind : str
        `IMAGES`, `TEXT` or `TABLE`.
    inputs : tuple[str, ...]
        The columns that a model gets.
    """

    train: "Dataset"
    test: "Dataset"
    train_labels: np.ndarray
    test_labels: np.ndarray
    classes: tuple[str, ...]
    kind: str
    inputs: tuple[str, ...]

    def columns(self) -> dict[str, np.ndarray]:
        """Return those columns of the training pool that partitioners can go by: numbers and short texts."""
        found = {}
        for name, feature in self.train.features.items():
            if not _is_scalar(feature, "int", "uint", "float", "bool", "string"):
                continue
            if None not in (values := list(self.train[name][:])):
                array = np.array(values)
                if array.dtype.kind != "U" or array.dtype.itemsize <= 4 * LONGEST:
                    found[name] = array
        return found


@lru_cache(maxsize=1)
def open_set(spec: ObjectSpec, told: Told) -> HubSet:
    """Return a set of the hub, or of a folder that ``save_to_disk`` wrote.

    Its pools are ``train``, and ``test`` or else ``validation``. Without one to test on, `told.test_share` of each
    class is drawn by the seed.

    Parameters
    ----------
    spec : ObjectSpec
        Names it, with arguments for ``datasets.load_dataset``.
    told : Told
        Columns, where they can't be found; with a tokenizer it is text.

    Raises
    ------
    UserError
        If ``datasets`` is not installed, the set can't be had, or columns can't be found or are not of the kind.
    """
    pools = _pools(_read(spec), spec)
    train = pools[0]
    label = _label_column(train, told, spec)
    inputs, kind = _input_columns(train, told, label, spec)
    if len(pools) == 1:
        (labels,), classes = _labels([train], label, spec)
        rows = train_and_test(labels, told.test_share, told.seed)
        if not len(rows[1]):
            raise bad_value(spec.key, spec.text, "a set with two examples or more of a class, to train and to test on")
        train, test = (train.select(part) for part in rows)
        return HubSet(train, test, labels[rows[0]], labels[rows[1]], classes, kind, inputs)
    tests = [pool for pool in pools[1:] if label in pool.column_names and not _is_hidden(pool, label)]
    if not tests:
        raise bad_value(LABEL_KEY, label, "a column that the test pool has, too, with labels in it")
    for key, name in ((LABEL_KEY, label), *((INPUTS_KEY, name) for name in inputs)):
        here, there = (_kind_of(pool.features.get(name)) for pool in (train, tests[0]))
        if here != there:
            raise bad_value(key, name, f"a column of one kind in both pools: {here} to train, {there} to test")
    for name in inputs:
        if getattr(train.features[name], "names", None) != getattr(tests[0].features[name], "names", None):
            raise bad_value(INPUTS_KEY, name, "a column whose classes have one order in both pools")
    (labels, test_labels), classes = _labels([train, tests[0]], label, spec)
    if missing := sorted({*test_labels.tolist()} - {*labels.tolist()}):
        allowed = f"a set whose training pool has each class, not none of {classes[missing[0]]!r}"
        raise bad_value(spec.key, spec.text, allowed)
    return HubSet(train, tests[0], labels, test_labels, classes, kind, inputs)


def library(key: str, text: str) -> Any:
    """Return the module ``datasets``; UserError, which names a setting, if it is not installed."""
    module = load_built_in("datasets:utils", key, text, "datasets", "'espalier-fl[datasets]'")
    module.disable_progress_bars()  # the run has its own lines
    import datasets

    return datasets


def _read(spec: ObjectSpec) -> "Dataset | DatasetDict":
    datasets = library(spec.key, spec.text)
    folder = folder_of(spec)
    if folder is not None and not folder.is_dir():
        raise bad_value(spec.key, spec.text, "a folder that save_to_disk() wrote: there is no such folder")
    try:
        if folder is not None:
            return datasets.load_from_disk(str(folder))
        return datasets.load_dataset(spec.name, **dict(spec.parameters))
    except FAULTS as error:  # no network, a file that is damaged, an argument that it does not take
        where = "a set on the Hugging Face hub, or hf:/a/folder" if folder is None else "a folder"
        allowed = f"{where} that save_to_disk() wrote ({error_line(error)})"
        raise bad_value(spec.key, spec.text, allowed) from None


def _pools(opened: Any, spec: ObjectSpec) -> "list[Dataset]":
    """Return the training pool, and behind it those that can be tested on."""
    if not isinstance(opened, Mapping):
        pools = [opened]
    elif len(opened) == 1:
        pools = list(opened.values())
    elif "train" in opened:
        pools = [opened["train"], *(opened[name] for name in TESTS if name in opened)]
    else:
        allowed = f"a set with a pool named train, not {', '.join(opened)}: name one by (split='{next(iter(opened))}')"
        raise bad_value(spec.key, spec.text, allowed)
    for pool in pools:
        if not hasattr(pool, "column_names") or not hasattr(pool, "select") or not len(pool):
            raise bad_value(spec.key, spec.text, "a set whose pools have examples")
    return pools


def _label_column(train: "Dataset", told: Told, spec: ObjectSpec) -> str:
    names = train.column_names
    if told.label:
        return _known(LABEL_KEY, told.label, names)
    class_columns = [name for name, feature in train.features.items() if type(feature).__name__ == "ClassLabel"]
    found = [name for name in LABELS if name in names] or (class_columns if len(class_columns) == 1 else [])
    if not found:
        allowed = f"one of the columns {', '.join(map(repr, names))} of {spec.key} = {spec.text!r}"
        raise bad_value(LABEL_KEY, "", f"{allowed}: the one to predict can't be told by its name")
    return found[0]


def _input_columns(train: "Dataset", told: Told, label: str, spec: ObjectSpec) -> tuple[tuple[str, ...], str]:
    """Return the columns that a model gets, and what they are."""
    features = {name: feature for name, feature in train.features.items() if name != label}
    chosen = {_known(INPUTS_KEY, name, list(features)): features[name] for name in told.inputs} or features
    texts = [name for name, feature in chosen.items() if _is_scalar(feature, "string", "large_string")]
    if told.tokenizer:
        return (_the_only(texts, "texts", features, told, spec),), TEXT
    images = [name for name, feature in chosen.items() if _is_image(feature)]
    if images:
        return (_the_only(images, "images", features, told, spec),), IMAGES
    numbers = [name for name, feature in chosen.items() if _is_scalar(feature, "int", "uint", "float", "bool")]
    if told.inputs:
        if others := [name for name in chosen if name not in (*numbers, *texts)]:
            allowed = f"columns of numbers or of texts, or one of images: {others[0]} holds {chosen[others[0]]}"
            raise bad_value(INPUTS_KEY, ",".join(told.inputs), allowed)
        return tuple(chosen), TABLE
    if not numbers:
        wanted = f"a tokenizer's name for the texts of {texts[0]!r}" if texts else "a set of images, texts or numbers"
        key, value = (TOKENIZER_KEY, "") if texts else (spec.key, spec.text)
        raise bad_value(key, value, f"{wanted} (columns {', '.join(map(repr, features))})")
    return tuple(numbers), TABLE


def _the_only(found: Sequence[str], what: str, features: Mapping[str, Any], told: Told, spec: ObjectSpec) -> str:
    if len(found) != 1:
        allowed = f"one column of {what} of {spec.key} = {spec.text!r}, which has {', '.join(map(repr, features))}"
        raise bad_value(INPUTS_KEY, ",".join(told.inputs), allowed)
    return found[0]


def _known(key: str, name: str, names: Sequence[str]) -> str:
    if name not in names:
        raise bad_value(key, name, f"one of the columns {', '.join(map(repr, names))}")
    return name


def _is_scalar(feature: Any, *kinds: str) -> bool:
    return str(getattr(feature, "dtype", "")).rstrip("0123456789") in kinds and hasattr(feature, "pa_type")


def _kind_of(feature: Any) -> str:
    """Return what a column holds, in a word: values of one kind mean the same in every pool."""
    if feature is None:
        return "nothing"
    if _is_image(feature):
        return IMAGES
    if hasattr(feature, "names"):
        return "named classes"
    return "texts" if _is_scalar(feature, "string", "large_string") else "numbers"


def _is_image(feature: Any) -> bool:
    return type(feature).__name__ in ("Image", "Array2D", "Array3D")


def _is_hidden(pool: "Dataset", label: str) -> bool:
    """Return whether a pool's labels were left out, as those of a competition are."""
    values = pool[label][:]
    return all(value is None or value == -1 for value in values)


def _labels(pools: "Sequence[Dataset]", label: str, spec: ObjectSpec) -> tuple[list[np.ndarray], tuple[str, ...]]:
    """Return the labels of pools as classes from 0 on, and the classes' names; UserError where they are none."""
    feature = pools[0].features[label]
    allowed = f"a column of classes (whole numbers, truth values or texts) of {spec.key} = {spec.text!r}"
    if not _is_scalar(feature, "int", "uint", "bool", "string", "large_string"):
        raise bad_value(LABEL_KEY, label, f"{allowed}, not of {getattr(feature, 'dtype', feature)}")
    columns = [list(pool[label][:]) for pool in pools]
    if any(None in values for values in columns):
        raise bad_value(LABEL_KEY, label, f"{allowed}, without gaps")
    if hasattr(feature, "names"):
        if min(map(min, columns)) < 0:
            raise bad_value(LABEL_KEY, label, f"{allowed}, without gaps: some are -1")
        classes = list(feature.names)
        # Each pool numbers classes in an order of its own.
        names_there = [pool.features[label].names for pool in pools]
        columns = [[names[value] for value in values] for names, values in zip(names_there, columns, strict=True)]
        if unknown := sorted({*columns[-1]} - {*classes}):
            raise bad_value(LABEL_KEY, label, f"{allowed}: {unknown[0]!r} is a class of the test pool alone")
    else:
        classes = sorted(set().union(*columns))
        if len(classes) == len(columns[0]) > 2:
            raise bad_value(LABEL_KEY, label, f"{allowed}: these are {len(classes)} different values")
    if len(classes) > MOST_CLASSES:
        raise bad_value(LABEL_KEY, label, f"{allowed}, {MOST_CLASSES} at most: these are {len(classes)}")
    numbers = {value: number for number, value in enumerate(classes)}
    labels = [np.array([numbers[value] for value in column], dtype=np.int64) for column in columns]
    return labels, tuple(map(str, classes))
