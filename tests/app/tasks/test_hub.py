"""Sets of Hugging Face's datasets, written to disk: images, texts and tables."""

import struct
import sys
import zlib
from importlib.util import find_spec

import numpy as np
import pytest
import torch
from PIL import Image

from espalier.app.config.parse import parse_config
from espalier.app.ground.errors import UserError
from espalier.app.settings.dataset_source import folder_of, parse_dataset
from espalier.app.tasks.columns import ColumnsTask
from espalier.app.tasks.held_out import train_and_test
from espalier.app.tasks.hub import open_set
from espalier.app.tasks.images import ImageTask
from espalier.app.wiring.task_of_run import build_task

pytestmark = pytest.mark.skipif(find_spec("datasets") is None, reason="datasets is not installed")


def png_of_16_bits():
    """Return the file of a coloured picture of one pixel."""

    def block(kind, content):
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header, pixel = struct.pack(">IIBBBBB", 1, 1, 16, 2, 0, 0, 0), zlib.compress(bytes([0, 0, 9, 0, 9, 0, 9]))
    return b"\x89PNG\r\n\x1a\n" + block(b"IHDR", header) + block(b"IDAT", pixel) + block(b"IEND", b"")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder of sets as their authors write them."""
    import datasets

    root = tmp_path_factory.mktemp("hub")
    rng = np.random.default_rng(0)
    labels = [i % 3 for i in range(30)]
    named = datasets.ClassLabel(names=["cat", "dog", "owl"])

    def save(name, columns, test=None, **casts):
        pools = {"train": columns} | ({"validation": test} if test else {})
        made = {pool: datasets.Dataset.from_dict(values) for pool, values in pools.items()}
        for column, feature in casts.items():
            made = {pool: one.cast_column(column, feature) for pool, one in made.items()}
        datasets.DatasetDict(made).save_to_disk(str(root / name))

    pixels = rng.integers(0, 256, (30, 8, 8), dtype=np.uint8)
    images = [Image.fromarray(one) for one in pixels]
    save("images", {"image": images, "label": labels, "writer": [f"w{i % 4}" for i in range(30)]}, label=named)
    np.save(root / "pixels.npy", pixels)
    deep = {"image": [{"bytes": png_of_16_bits(), "path": None}] * 6, "label": [0, 1] * 3}
    save("deep", deep, image=datasets.Image())
    save("sizes", {"image": [Image.fromarray(pixels[0]), Image.fromarray(pixels[0, :4])] * 4, "label": [0, 1] * 4})
    colours = [Image.fromarray(pixels[0]), Image.fromarray(np.stack([pixels[1]] * 3, axis=-1))]
    save("colours", {"image": colours * 4, "label": [0, 1] * 4})
    words = [f"{['red', 'green', 'blue'][label]} thing number {i}" for i, label in enumerate(labels)]
    test = {"text": words[:6], "label": ["r", "g", "b"] * 2}
    save("texts", {"text": words, "label": ["r", "g", "b"] * 10}, test)
    age = rng.normal(40, 10, 30)
    table = {"age": age, "smokes": [bool(i % 2) for i in range(30)], "town": ["a", "b"] * 15, "ill": labels}
    save("table", {**table, "other": age})
    save("gaps", {"age": [1.0, None] * 15, "label": labels})
    tests = {"a": age[:6], "label": labels[:6]}

    def save_pools(name, train, test, classes=("", ""), of="label"):
        made = {"train": datasets.Dataset.from_dict(train), "test": datasets.Dataset.from_dict(test)}
        for pool, names in zip(made, classes, strict=True):
            if names:
                made[pool] = made[pool].cast_column(of, datasets.ClassLabel(names=list(names)))
        # As DatasetDict.save_to_disk writes it, which wants columns of one kind.
        for pool, one in made.items():
            one.save_to_disk(str(root / name / pool))
        (root / name / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')

    numbers = {"a": age, "label": labels}
    save_pools("order", numbers, tests, ("pqr", "rqp"))
    save_pools("unknown", numbers, tests, ("pqr", "pqs"))
    save_pools("texts and classes", {**numbers, "label": ["p", "q", "r"] * 10}, tests, ("", "pqr"))
    save_pools("texts and numbers", numbers, {**tests, "a": [str(value) for value in age[:6]]})
    save_pools("lacking", {**numbers, "b": age}, tests)
    save_pools("inputs", {**numbers, "b": labels}, {**tests, "b": labels[:6]}, ("xyz", "zyx"), "b")
    save_pools("constant", {**numbers, "b": [0.1] * 30}, {**tests, "b": [0.1, 0.2] * 3})
    save_pools("beyond", {**numbers, "b": [1e300, -1e300] * 15}, {**tests, "b": [0.0] * 6})
    vocabulary = {word: i for i, word in enumerate(["[UNK]", "red", "green", "blue", "thing", "[PAD]"])}
    from tokenizers import Tokenizer, models, pre_tokenizers

    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(root / "tokenizer.json"))
    # Without a token that fills up, and with a number that no token has.
    tokenizer = Tokenizer(models.WordLevel({"red": 0, "green": 1, "[UNK]": 9}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(root / "plain.json"))
    grey = datasets.Array3D((8, 8, 1), "uint8")
    save("arrays", {"image": list(pixels[..., None]), "label": labels}, image=grey)
    return root


def task_of(folder, name, **settings):
    given = {"dataset": f"hf:{folder / name}", "num-clients": 2, "data.cache-dir": str(folder / "cache")}
    return build_task(parse_config({**given, "data.min-samples": 1, "engine": "in-process", **settings}))


def test_a_data_set_is_named_in_four_forms():
    assert parse_dataset("cifar10").module == ""
    spec = parse_dataset("hf:org/name(name='plain', revision='1.0')")
    assert (spec.module, spec.name) == ("hf", "org/name")
    assert dict(spec.parameters) == {"name": "plain", "revision": "1.0"}
    assert folder_of(spec) is None
    assert folder_of(parse_dataset("hf:/a/set")) == folder_of(parse_dataset("/a/set"))
    with pytest.raises(ValueError, match="hf:ORG/NAME"):
        parse_dataset("hf:org/name(1)")
    assert parse_config({"dataset": "hf:org/a-name"}).data.title == "a-name"


def test_a_set_without_its_library_and_a_relative_folder_in_flowers_runtime_are_one_line(folder, monkeypatch):
    with pytest.raises(UserError, match=r"dataset = 'hf:\./texts': allowed is an absolute path"):
        parse_config({"engine": "flower", "dataset": "hf:./texts"})
    open_set.cache_clear()
    monkeypatch.setitem(sys.modules, "datasets", None)
    monkeypatch.delitem(sys.modules, "datasets.utils")
    with pytest.raises(UserError, match=r"it is not installed \(pip install 'espalier-fl\[datasets\]'\)"):
        task_of(folder, "table")


def test_images_are_those_of_the_set(folder):
    task = task_of(folder, "images", **{"data.test-share": 0.3, "model": "small-cnn"})
    assert type(task) is ImageTask
    assert task.data.classes == ("cat", "dog", "owl")
    labels = np.arange(30) % 3
    train, test = train_and_test(labels, 0.3, 0)
    pixels = np.load(folder / "pixels.npy")[..., None]
    assert len(test) == 9
    assert np.array_equal(task.data.train.images, pixels[train])
    assert np.array_equal(task.data.test.images, pixels[test])
    assert np.array_equal(task.data.test.labels, labels[test])
    assert task.data.columns["writer"].tolist() == [f"w{i % 4}" for i in train]
    resized = task_of(folder, "images", **{"data.image-size": 16})
    assert resized.image_shape == (1, 16, 16)
    by_writer = {"partition": "flwr:NaturalIdPartitioner(partition_by='writer')", "num-clients": 4}
    held = task_of(folder, "images", **by_writer, model="small-cnn")
    of_whom = [{held.data.columns["writer"][i] for i in held.client_indices[client].train} for client in range(4)]
    assert sorted(map(sorted, of_whom)) == [["w0"], ["w1"], ["w2"], ["w3"]]


def test_texts_are_the_tokenizers_numbers_filled_up(folder):
    task = task_of(folder, "texts", **{"data.tokenizer": str(folder), "data.max-tokens": 2, "algorithm": "fedavg"})
    assert type(task) is ColumnsTask
    pool = task.test_examples()
    assert pool.inputs.tolist() == [[1, 4], [2, 4], [3, 4]] * 2
    assert pool.labels.tolist() == [2, 1, 0] * 2  # of "b", "g", "r"
    longer = task_of(folder, "texts", **{"data.tokenizer": str(folder / "tokenizer.json")})
    assert longer.test_examples().inputs[0].tolist() == [1, 4, 0, 0]
    model = longer.new_model().eval()
    filled = torch.tensor([[1, 4, 0, 0, 5, 5]])
    assert torch.allclose(model(filled), model(filled[:, :4]))
    assert longer.describe()["padding"] == 5
    longer.check_data()


def test_what_fills_up_is_no_word(folder):
    task = task_of(folder, "texts", **{"data.tokenizer": str(folder / "plain.json")})
    assert task.describe()["padding"] == 10
    model = task.new_model().eval()
    red, nothing = torch.tensor([[0, 10]]), torch.tensor([[10, 10]])
    assert torch.allclose(model(red), model(red[:, :1]))
    assert not torch.allclose(model(red), model(nothing))
    task.check_data()


def test_grey_images_of_one_channel_are_the_arrays(folder):
    task = task_of(folder, "arrays", model="small-cnn")
    train, _ = train_and_test(np.arange(30) % 3, 0.2, 0)
    assert np.array_equal(task.data.train.images, np.load(folder / "pixels.npy")[..., None][train])


def test_classes_are_told_by_name_where_pools_number_them_otherwise(folder):
    task = task_of(folder, "order")
    assert task.test_examples().labels.tolist() == [2, 1, 0] * 2


def test_a_column_that_does_not_vary_in_training_is_not_blown_up(folder):
    task = task_of(folder, "constant")
    assert task.test_examples().inputs[:, 1].tolist() == pytest.approx([0.0, 0.1] * 3)


def test_a_table_is_normalised_and_trained_on(folder):
    task = task_of(folder, "table", **{"data.label": "ill", "data.inputs": "age,smokes,town"})
    parts = [task.new_client_task(task.new_model(), node) for node in map(node_of, range(2))]
    whole = torch.cat([part.train.inputs for part in parts])
    assert whole.shape == (24, 4)  # a town is one of two
    assert torch.allclose(whole.mean(dim=0), torch.zeros(4), atol=1e-6)
    assert torch.allclose(whole.var(dim=0, correction=0), torch.ones(4), atol=1e-5)
    assert task.describe()["inputs"] == ["age", "smokes", "town=a", "town=b"]
    found = task_of(folder, "table", **{"data.label": "ill"})
    assert found.describe()["inputs"] == ["age", "smokes", "other"]
    found.check_data()


def node_of(client):
    from espalier.app.tasks.node import ClientNode

    return ClientNode(client)


def own_net(num_classes, input_shape, width=3):
    return torch.nn.Sequential(
        torch.nn.Linear(*input_shape, width), torch.nn.ReLU(), torch.nn.Linear(width, num_classes)
    )


def grey_net(num_classes, input_shape):
    assert input_shape == (1, 8, 8)
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, num_classes))


def test_grey_images_are_sized_and_tried_with_one_channel(folder, monkeypatch):
    monkeypatch.setattr("espalier.app.tasks.footprint.available_bytes", lambda: 20_000)
    settings = {"model": f"{__name__}:grey_net", "algorithm": "fedavg", "batch-size": 2}
    task_of(folder, "arrays", **settings).check_data()
    monkeypatch.setattr("espalier.app.tasks.footprint.available_bytes", lambda: 4_000)
    with pytest.raises(UserError, match=r"\(.*images 2,304, a mini-batch"):
        task_of(folder, "images", **settings).check_data()


def bad_net(num_classes):
    return torch.nn.Linear(5, num_classes)


def test_a_model_of_ones_own_gets_the_columns(folder):
    text = f"{__name__}:own_net(width=7)"
    task = task_of(folder, "table", **{"data.label": "ill", "model": text, "algorithm": "fedavg"})
    assert task.new_model()[0].weight.shape == (7, 3)
    task.check_data()
    wrong = task_of(folder, "table", **{"data.label": "ill", "model": f"{__name__}:bad_net", "algorithm": "fedavg"})
    with pytest.raises(UserError, match=r"model = .*bad_net.*whose model takes its data"):
        wrong.check_data()


@pytest.mark.parametrize(
    ("name", "settings", "said"),
    [
        ("none", {}, "hf:.*allowed is a folder that save_to_disk.. wrote: there is no such folder"),
        (".", {}, r"hf:.*allowed is a folder that save_to_disk.. wrote \(FileNotFoundError"),
        ("table", {}, "data.label = '': allowed is one of the columns 'age', 'smokes', 'town', 'ill', 'other'"),
        ("table", {"data.label": "no"}, "data.label = 'no': allowed is one of the columns 'age', 'smokes'"),
        ("table", {"data.label": "age"}, "data.label = 'age': allowed is a column of classes .*, not of float64"),
        ("table", {"data.label": "ill", "data.inputs": "ill"}, "data.inputs = 'ill': allowed is one of the columns"),
        ("texts", {}, "data.tokenizer = '': allowed is a tokenizer's name for the texts of 'text'"),
        ("texts", {"data.tokenizer": "/no"}, "data.tokenizer = '/no': allowed is a tokenizer.json, a folder with one"),
        ("texts", {"data.tokenizer": "~nosuch/x"}, "data.tokenizer = '~nosuch/x': allowed is a path; there is no home"),
        ("table", {"dataset": "hf:~nosuch/x"}, "dataset = '~nosuch/x': allowed is a path; there is no home folder"),
        ("gaps", {}, "data.inputs = 'age': allowed is columns without gaps: row 1 has none"),
        ("table", {"data.label": "ill", "model": "cnn"}, "model = 'cnn': allowed is 'auto' or .*which is a table"),
        ("deep", {}, r"data.inputs = 'image': allowed is .* 8 bits per channel: row 0 has pixels of mode RGB;16B"),
        ("sizes", {"model": "small-cnn"}, "data.image-size = 0: allowed is a side in pixels .* 8x4 and 8x8"),
        (
            "colours",
            {"model": "small-cnn"},
            "data.inputs = 'image': allowed is a column of images.*the first one is grey",
        ),
        ("images", {"dataset": "digits", "data.label": "x"}, "data.label = 'x': allowed is ''"),
        ("unknown", {}, "data.label = 'label': allowed is .*: 's' is a class of the test pool alone"),
        ("texts and classes", {}, "data.label = 'label': .* kind in both pools: texts to train, named classes to test"),
        ("texts and numbers", {}, "data.inputs = 'a': .* kind in both pools: numbers to train, texts to test"),
        ("lacking", {}, "data.inputs = 'b': .* kind in both pools: numbers to train, nothing to test"),
        ("inputs", {}, "data.inputs = 'b': allowed is a column whose classes have one order in both"),
        ("beyond", {}, "data.inputs = 'b': allowed is columns whose variance is below 1e308"),
    ],
)
def test_what_can_not_be_read_is_one_line(folder, name, settings, said):
    with pytest.raises(UserError, match=said) as caught:
        task_of(folder, name, **settings).check_data()
    assert "\n" not in str(caught.value)
