"""Data and models: what suits a data set, a task of one's own, and folders of the clients' own."""

from espalier.app.algorithms.algorithm import Algorithm
from espalier.app.features.case import Case
from espalier.app.features.feature import Feature, Unused
from espalier.app.ground.errors import bad_value
from espalier.app.ground.object_spec import HUB
from espalier.app.settings.dataset_source import is_relative
from espalier.app.settings.section import Tag
from espalier.app.settings.sections import OWN, Caching, Data
from espalier.app.settings.values import CLASSES_ALLOWED, channels_allowed
from espalier.app.tasks.data import dataset_named
from espalier.app.tasks.kinds import task_kind
from espalier.app.tasks.models import model_named
from espalier.app.tasks.partition import scheme_named, unused_by


def check(case: Case) -> None:
    """Refuse data, models and algorithms that do not suit each other."""
    algorithm, data, task = case.algorithm, case.data, task_kind(case.data)
    _check_own_task(data)
    _check_columns(data)
    if case.on_devices and is_relative(data.dataset):
        allowed = "an absolute path (a relative one would start at the SuperLink's folder)"
        raise bad_value("dataset", data.dataset.text, allowed)
    model_named(data.model)
    scheme_named(data.partition)
    if task.has_own_model and data.model.text != "auto":
        raise bad_value("model", data.model.text, f"'auto' for {data.source}, which has a model of its own")
    if data.validation_share and task.grows:
        allowed = f"0.0 for {data.source}, whose clients get more data from round to round"
        raise bad_value("data.validation-share", data.validation_share, allowed)
    if data.validation_share and not case.report.evaluate_clients:
        allowed = f"more than 0.0 for data.validation-share = {data.validation_share:g}, which clients evaluate on"
        raise bad_value("report.evaluate-clients", case.report.evaluate_clients, allowed)
    if algorithm.ranks_requests and not task.counts_requests:
        raise bad_value("algorithm", algorithm.text, "another algorithm, or dataset = 'video-caching'")
    _check_own_folders(algorithm, data)
    dataset = dataset_named(data.dataset)
    if dataset and dataset.is_folder and not data.data_dir:
        raise bad_value("data-dir", "", f"a folder with train/<class>/* and test/<class>/* for {data.source}")


def _check_own_task(data: Data) -> None:
    """Refuse other settings of data and model beside a task of one's own; those of a pool it may have a use for."""
    if not data.task.text:
        return
    given, defaults, both = data.as_dict(), Data().as_dict(), Data.keys_tagged(Tag.WITH_OWN_TASK)
    for key in defaults:
        if key not in both and given[key] != defaults[key]:
            own = f"for {data.source}, which has data and a model of its own"
            raise bad_value(key, given[key], f"{defaults[key]!r}, the default, {own}")


def _check_columns(data: Data) -> None:
    """Refuse columns and a tokenizer that are told of other data than a library's set."""
    for key, value in data.given(Tag.OF_COLUMNS) if data.dataset.module != HUB else ():
        raise bad_value(key, value, f"'' for {data.source}: columns are those of dataset = 'hf:ORG/NAME'")


def _check_own_folders(algorithm: Algorithm, data: Data) -> None:
    """Refuse what does not go together with folders of the clients' own, or is for them only."""
    if data.partition.text != OWN:
        for key, value in data.given(Tag.OF_OWN_FOLDERS):
            raise bad_value(key, value, f"'' for partition = {data.partition.text!r}, where the data set decides it")
        return
    dataset = dataset_named(data.dataset)
    if data.task.text or not (dataset and dataset.is_folder):
        allowed = f"another one for {data.source}: clients' own folders are for 'image-folder'"
        raise bad_value("partition", OWN, allowed)
    if not algorithm.trains_clients:
        allowed = f"one that trains clients for partition = {OWN!r}: nobody has all the data"
        raise bad_value("algorithm", algorithm.text, allowed)
    if not data.image_size:
        raise bad_value("data.image-size", 0, f"1 or more for partition = {OWN!r}: all clients' images get one size")
    for key, given, allowed in (
        ("data.classes", data.classes.text, CLASSES_ALLOWED),
        ("data.pixel-mean", data.pixel_mean.text, channels_allowed(0.0)),
        ("data.pixel-std", data.pixel_std.text, channels_allowed(1e-6)),
    ):
        if not given:
            raise bad_value(key, "", allowed)


def without_use(case: Case) -> Unused:
    """Yield what is for other data sets, or other partitions."""
    data = case.data
    if task_kind(data).counts_requests:
        yield Data.keys_tagged(Tag.READS_DATA), "dataset = 'video-caching' is simulated"
        return
    yield Caching.own_keys(), f"dataset = {data.dataset.text!r}"
    yield unused_by(data.partition), f"partition = {data.partition.text!r}"
    if not data.tokenizer:
        yield ("data.max-tokens",), "data.tokenizer = ''"
    if not (dataset := dataset_named(data.dataset)) or not dataset.may_be_whole or data.task.text:
        yield ("data.test-share",), f"{data.source} is divided into training and test examples"


DATA = Feature(name="data", check=check, without_use=without_use)
