import json
import os
import pickle
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from espalier.app.ground.errors import UserError
from espalier.app.tasks import image_folder, torchvision_data
from espalier.app.tasks.data import DATASETS, load_dataset
from espalier.app.tasks.dataset import Told

CIFAR10_ARCHIVE = Path(__file__).parents[3] / ".." / "shared" / "data" / "cifar10-jpeg.tar.xz"
CIFAR10_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


def put_image(file, value, size=4):
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((size, size, 3), value, dtype=np.uint8)).save(file)


@pytest.fixture
def folder(tmp_path):
    root = tmp_path / "images"
    for pool, per_class in (("train", 3), ("test", 2)):
        for label, name in enumerate(("ant", "bee")):
            for i in range(per_class):
                put_image(root / pool / name / f"{i}.png", 100 * label + i)
    return root


def test_unknown_names_and_sizes_are_refused(tmp_path):
    with pytest.raises(UserError, match=r"dataset = 'mnsit': allowed is 'digits', 'cifar10', .* did you mean 'mnist'"):
        load_dataset("mnsit", data_dir=None, cache_dir=tmp_path)
    with pytest.raises(UserError, match=r"data\.image-size = -1: allowed is a side in pixels, or 0"):
        load_dataset("image-folder", data_dir=tmp_path, cache_dir=tmp_path, image_size=-1)
    with pytest.raises(UserError, match=r"data\.image-size = 32: allowed is 0 where dataset = 'digits'"):
        load_dataset("digits", data_dir=None, cache_dir=tmp_path, image_size=32)
    assert {"digits", "cifar10", "mnist", "emnist-letters", "femnist", "pathmnist", "image-folder"} < set(DATASETS)


def test_digits_are_stratified_and_always_the_same(tmp_path):
    digits = load_dataset("digits", data_dir=None, cache_dir=tmp_path / "cache")
    assert digits.train.images.shape == (1437, 8, 8, 1)
    assert digits.test.images.shape == (360, 8, 8, 1)
    assert digits.train.images.dtype == np.uint8
    assert digits.train.labels.dtype == np.int64
    assert digits.classes == tuple("0123456789")
    assert (digits.train.images.min(), digits.train.images.max()) == (0, 255)
    share = np.bincount(digits.train.labels) / (np.bincount(digits.train.labels) + np.bincount(digits.test.labels))
    assert np.abs(share - 0.8).max() < 0.005
    assert digits.mean == pytest.approx((0.305434,), abs=1e-6)
    assert digits.std == pytest.approx((0.375957,), abs=1e-6)
    again = load_dataset("digits", data_dir=None, cache_dir=tmp_path / "another")
    assert np.array_equal(again.test.images, digits.test.images)
    with pytest.raises(ValueError, match="read-only"):
        digits.train.images[0] = 0


def test_digits_are_read_with_scikit_learn_only_once(tmp_path, monkeypatch):
    first = load_dataset("digits", data_dir=None, cache_dir=tmp_path / "cache")
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    second = load_dataset("digits", data_dir=None, cache_dir=tmp_path / "cache")
    assert np.array_equal(second.train.images, first.train.images)
    with pytest.raises(ImportError):
        load_dataset("digits", data_dir=None, cache_dir=tmp_path / "another")


def test_an_image_folder_comes_back_pixel_by_pixel(folder, tmp_path):
    loaded = load_dataset("image-folder", data_dir=folder, cache_dir=tmp_path / "cache")
    assert loaded.classes == ("ant", "bee")
    assert loaded.train.images.shape == (6, 4, 4, 3)
    assert loaded.train.images[:, 0, 0, 0].tolist() == [0, 1, 2, 100, 101, 102]
    assert loaded.train.labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert loaded.test.images[:, 3, 3, 2].tolist() == [0, 1, 100, 101]
    assert loaded.test.labels.tolist() == [0, 0, 1, 1]
    assert loaded.mean == pytest.approx([51 / 255] * 3)
    assert isinstance(loaded.train.images, np.memmap)


def test_the_second_load_decodes_nothing(folder, tmp_path, monkeypatch):
    first = load_dataset("image-folder", data_dir=folder, cache_dir=tmp_path / "cache")
    monkeypatch.setattr(image_folder, "decode_image", None)
    second = load_dataset("image-folder", data_dir=folder, cache_dir=tmp_path / "cache")
    assert np.array_equal(first.train.images, second.train.images)
    assert np.array_equal(first.test.labels, second.test.labels)
    assert (first.classes, first.mean, first.std) == (second.classes, second.mean, second.std)


def test_a_changed_file_a_new_one_and_another_size_are_seen(folder, tmp_path):
    def load(image_size=0):
        return load_dataset("image-folder", data_dir=folder, cache_dir=tmp_path / "cache", image_size=image_size)

    load()
    put_image(folder / "train/ant/0.png", 7)
    os.utime(folder / "train/ant/0.png", ns=(1, 1))
    assert load().train.images[0, 0, 0, 0] == 7
    put_image(folder / "train/ant/9.png", 9)
    assert load().train.images[:, 0, 0, 0].tolist() == [7, 1, 2, 9, 100, 101, 102]
    assert load(image_size=2).train.images.shape == (7, 2, 2, 3)
    assert load().train.images.shape == (7, 4, 4, 3)


def test_a_damaged_cache_is_built_again(folder, tmp_path):
    def load():
        return load_dataset("image-folder", data_dir=folder, cache_dir=tmp_path / "cache")

    load()
    (entry,) = (tmp_path / "cache").iterdir()
    images = entry / "train-images.npy"
    images.write_bytes(images.read_bytes()[:200])
    assert load().train.images[:, 0, 0, 0].tolist() == [0, 1, 2, 100, 101, 102]


def test_a_damaged_image_leaves_nothing_in_the_cache(folder, tmp_path):
    (folder / "test/bee/1.png").write_bytes(b"damaged")
    with pytest.raises(UserError, match=r"test/bee/1\.png: cannot be read as an image"):
        load_dataset("image-folder", data_dir=folder, cache_dir=tmp_path / "cache")
    assert os.listdir(tmp_path / "cache") == []


def test_an_image_folder_needs_data_dir_and_a_cache_that_can_be_written(folder, tmp_path):
    with pytest.raises(UserError, match="data-dir is not set: dataset = 'image-folder' needs"):
        load_dataset("image-folder", data_dir=None, cache_dir=tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"file: cannot be written .* set data\.cache-dir"):
        load_dataset("image-folder", data_dir=folder, cache_dir=tmp_path / "file")


def write_idx(file, array):
    """Write an array in the format of the MNIST family: magic, one size per axis, bytes."""
    file.parent.mkdir(parents=True, exist_ok=True)
    header = np.array([0x800 + array.ndim, *array.shape], dtype=">i4")
    file.write_bytes(header.tobytes() + array.astype(np.uint8).tobytes())


def test_fashion_mnist_is_read_from_idx_files(tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    raw = tmp_path / "FashionMNIST" / "raw"
    made = {}
    for pool, count in (("train", 20), ("t10k", 10)):
        made[pool] = rng.integers(0, 256, (count, 28, 28))
        write_idx(raw / f"{pool}-images-idx3-ubyte", made[pool])
        write_idx(raw / f"{pool}-labels-idx1-ubyte", np.arange(count) % 10)
    loaded = load_dataset("fashion-mnist", data_dir=tmp_path, cache_dir=tmp_path / "cache")
    assert loaded.train.images.shape == (20, 28, 28, 1)
    assert np.array_equal(loaded.train.images[..., 0], made["train"])
    assert np.array_equal(loaded.test.images[..., 0], made["t10k"])
    assert loaded.test.labels.tolist() == list(range(10))
    assert loaded.classes[0] == "T-shirt/top"
    monkeypatch.setattr(torchvision_data, "_open_torchvision", None)
    again = load_dataset("fashion-mnist", data_dir=tmp_path, cache_dir=tmp_path / "cache")
    assert np.array_equal(again.train.images, loaded.train.images)


def test_letters_of_emnist_are_upright_and_count_from_0(tmp_path):
    rng = np.random.default_rng(0)
    made = {}
    for pool in ("train", "test"):
        made[pool] = rng.integers(0, 256, (26, 28, 28))
        write_idx(tmp_path / "EMNIST" / "raw" / f"emnist-letters-{pool}-images-idx3-ubyte", made[pool])
        write_idx(tmp_path / "EMNIST" / "raw" / f"emnist-letters-{pool}-labels-idx1-ubyte", 1 + np.arange(26))
    loaded = load_dataset("emnist-letters", data_dir=tmp_path, cache_dir=tmp_path / "cache")
    assert np.array_equal(loaded.train.images[..., 0], made["train"].swapaxes(1, 2))
    assert loaded.test.labels.tolist() == list(range(26))
    assert loaded.classes == tuple("abcdefghijklmnopqrstuvwxyz")


def test_medmnist_is_read_from_its_npz_file(tmp_path):
    rng = np.random.default_rng(0)
    pools = {
        f"{pool}_images": rng.integers(0, 256, (6, 28, 28, 3), dtype=np.uint8) for pool in ("train", "val", "test")
    }
    labels = {f"{pool}_labels": (np.arange(6) % 3).astype(np.uint8)[:, None] for pool in ("train", "val", "test")}
    np.savez_compressed(tmp_path / "pathmnist.npz", **pools, **labels)
    loaded = load_dataset("pathmnist", data_dir=tmp_path, cache_dir=tmp_path / "cache")
    assert np.array_equal(loaded.train.images, pools["train_images"])
    assert np.array_equal(loaded.test.images, pools["test_images"])
    assert (loaded.test.labels.tolist(), loaded.classes) == ([0, 1, 2] * 2, ("0", "1", "2"))
    np.savez_compressed(tmp_path / "breastmnist.npz", **labels)
    with pytest.raises(UserError, match=r"breastmnist.npz: cannot be read .*allowed is an .npz file with train_images"):
        load_dataset("breastmnist", data_dir=tmp_path, cache_dir=tmp_path / "cache")
    whole = (tmp_path / "pathmnist.npz").read_bytes()
    (tmp_path / "dermamnist.npz").write_bytes(whole[: len(whole) // 2])
    np.save(tmp_path / "octmnist.npy", pools["train_images"])
    (tmp_path / "octmnist.npy").rename(tmp_path / "octmnist.npz")
    np.savez(tmp_path / "bloodmnist.npz", **pools, **{**labels, "test_labels": labels["test_labels"] + 1})
    np.savez(tmp_path / "tissuemnist.npz", **{**pools, "test_images": pools["test_images"][:, :8]}, **labels)
    huge = np.array([[0]] * 5 + [[2_000_000_000]], dtype=np.uint64)
    np.savez(tmp_path / "retinamnist.npz", **pools, **{**labels, "train_labels": huge})
    solid = {name: images.repeat(10, axis=3)[..., :28] for name, images in pools.items()}
    np.savez(tmp_path / "organamnist.npz", **solid, **labels)
    for name, said in (
        ("dermamnist", "cannot be read"),
        ("octmnist", "cannot be read"),
        ("bloodmnist", "class 3 is in the test pool alone"),
        ("tissuemnist", r"images to train on are \(28, 28, 3\), and to test on \(8, 28, 3\)"),
        ("retinamnist", r"labels are from 0 to 99999 at most, not from 0 to 2000000000"),
        ("organamnist", r"images are not uint8 \(N, height, width\[, 3\]\)"),
    ):
        with pytest.raises(UserError, match=f"{name}.npz: .*{said}"):
            load_dataset(name, data_dir=tmp_path, cache_dir=tmp_path / "cache")
    (tmp_path / "bloodmnist.npz").unlink()
    with pytest.raises(UserError, match=r"bloodmnist.npz: no such file: put bloodmnist.npz of https://medmnist.com"):
        load_dataset("bloodmnist", data_dir=tmp_path, cache_dir=tmp_path / "cache")


def write_leaf(file, pools):
    """Write what LEAF makes of {writer: (pixels from 0 to 1, labels)}."""
    file.parent.mkdir(parents=True, exist_ok=True)
    own = {user: {"x": pixels.reshape(len(y), -1).tolist(), "y": list(y)} for user, (pixels, y) in pools.items()}
    users = list(pools)
    file.write_text(json.dumps({"users": users, "num_samples": [len(own[u]["y"]) for u in users], "user_data": own}))


def test_femnist_is_read_from_leafs_json(tmp_path):
    levels = np.random.default_rng(0).integers(0, 256, (8, 28, 28))
    write_leaf(tmp_path / "train" / "0.json", {"f1": (levels[:2] / 255, [0, 61]), "f2": (levels[2:3] / 255, [10])})
    write_leaf(tmp_path / "train" / "1.json", {"f3": (levels[3:5] / 255, [0, 0])})
    write_leaf(tmp_path / "test" / "0.json", {"f1": (levels[5:7] / 255, [61, 10])})
    loaded = load_dataset("femnist", data_dir=tmp_path, cache_dir=tmp_path / "cache")
    assert np.array_equal(loaded.train.images[..., 0], levels[:5])
    assert [loaded.classes[label] for label in loaded.train.labels] == ["0", "z", "A", "0", "0"]
    assert loaded.columns["user"].tolist() == ["f1", "f1", "f2", "f3", "f3"]
    assert np.array_equal(loaded.test.images[..., 0], levels[5:7])
    whole = tmp_path / "whole"
    write_leaf(whole / "all_data" / "0.json", {"f1": (levels[:4] / 255, [5] * 4), "f2": (levels[4:] / 255, [6] * 4)})
    divided = load_dataset("femnist", data_dir=whole, cache_dir=tmp_path / "cache", told=Told(test_share=0.25, seed=1))
    assert sorted(divided.test.labels.tolist()) == [5, 6]
    assert divided.columns["user"].tolist() == ["f1"] * 3 + ["f2"] * 3
    write_leaf(tmp_path / "test" / "0.json", {"f1": (levels[5:7] / 255, [61, 11])})
    with pytest.raises(UserError, match=r"test/0.json: class 11 is in the test pool alone"):
        load_dataset("femnist", data_dir=tmp_path, cache_dir=tmp_path / "cache")
    write_leaf(tmp_path / "test" / "0.json", {})
    with pytest.raises(UserError, match=r"test/0.json: has no images"):
        load_dataset("femnist", data_dir=tmp_path, cache_dir=tmp_path / "cache")
    write_leaf(tmp_path / "train" / "1.json", {"f3": (levels[3:5], [0, 0])})
    with pytest.raises(UserError, match=r"train/1.json: cannot be read as LEAF's FEMNIST .*f3 has pixels"):
        load_dataset("femnist", data_dir=tmp_path, cache_dir=tmp_path / "cache")
    write_leaf(tmp_path / "train" / "1.json", {"f3": (levels[3:5] / 255, [0, 1.5])})
    with pytest.raises(UserError, match=r"train/1.json: .*f3 has labels that are no whole numbers"):
        load_dataset("femnist", data_dir=tmp_path, cache_dir=tmp_path / "cache")
    file = tmp_path / "train" / "1.json"
    write_leaf(file, {"f3": (levels[3:5] / 255, [0, 1])})
    file.write_text(file.read_text().replace('["f3"]', '["f3", "f3"]'))
    with pytest.raises(UserError, match=r"train/1.json: .*a writer is among its users twice"):
        load_dataset("femnist", data_dir=tmp_path, cache_dir=tmp_path / "cache")


def test_a_folder_that_is_not_divided_is_divided_by_the_seed(tmp_path):
    levels = {}
    for number, name in enumerate(("ant", "bee")):
        (tmp_path / name).mkdir()
        for i in range(5):
            levels[name, i] = number * 100 + i
            Image.new("RGB", (2, 2), (levels[name, i],) * 3).save(tmp_path / name / f"{i}.png")

    def divided(seed):
        told = Told(test_share=0.4, seed=seed)
        loaded = load_dataset("image-folder", data_dir=tmp_path, cache_dir=tmp_path / ".cache", told=told)
        train, test = (pool.images[:, 0, 0, 0].tolist() for pool in (loaded.train, loaded.test))
        assert sorted(train + test) == sorted(levels.values())
        assert loaded.test.labels.tolist() == [0, 0, 1, 1]
        assert all((level >= 100) == label for level, label in zip(train, loaded.train.labels, strict=True))
        return test

    assert divided(0) == divided(0)
    assert len({tuple(divided(seed)) for seed in range(3)}) > 1


def test_damaged_idx_files_are_one_line(tmp_path):
    for pool in ("train", "t10k"):
        for kind in ("images-idx3", "labels-idx1"):
            write_idx(tmp_path / "FashionMNIST" / "raw" / f"{pool}-{kind}-ubyte", np.zeros(3))
    with pytest.raises(UserError, match="dataset = 'fashion-mnist': cannot be downloaded or read") as caught:
        load_dataset("fashion-mnist", data_dir=tmp_path, cache_dir=tmp_path / "cache")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("train", "train_labels", "test", "said"),
    [
        ((6, 28, 28), 5, (4, 28, 28), "the train pool has 6 images and 5 labels"),
        ((5, 28, 28), 6, (4, 28, 28), "the train pool has 5 images and 6 labels"),
        ((6, 28, 28), 6, (4, 20, 20), r"images to train on are \(28, 28, 1\), and to test on \(20, 20, 1\)"),
        ((3, 28, 28), 3, (4, 28, 28), "class 3 is in the test pool alone"),
        ((11, 28, 28), 11, (4, 28, 28), "labels are from 0 to 9 at most, not from 0 to 10"),
    ],
)
def test_idx_files_that_do_not_go_together_are_one_line_and_nothing_is_kept(tmp_path, train, train_labels, test, said):
    raw = tmp_path / "MNIST" / "raw"
    for pool, shape, count in (("train", train, train_labels), ("t10k", test, 4)):
        write_idx(raw / f"{pool}-images-idx3-ubyte", np.zeros(shape))
        write_idx(raw / f"{pool}-labels-idx1-ubyte", np.arange(count))
    with pytest.raises(UserError, match=f"MNIST/raw: {said}: allowed are files of one data set"):
        load_dataset("mnist", data_dir=tmp_path, cache_dir=tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []


def write_batch(file, pixels, **entries):
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(pickle.dumps({"data": pixels, **entries}))


@pytest.mark.parametrize(
    ("name", "kind", "labels_key", "names_key"),
    [("cifar10", "CIFAR10", "labels", "label_names"), ("cifar100", "CIFAR100", "fine_labels", "fine_label_names")],
)
def test_cifar_is_read_from_pickled_batches(tmp_path, monkeypatch, name, kind, labels_key, names_key):
    from espalier.app.tasks.torchvision_compat import torchvision

    dataset = getattr(torchvision.datasets, kind)
    monkeypatch.setattr(dataset, "train_list", [["train_1", None], ["train_2", None]])
    monkeypatch.setattr(dataset, "test_list", [["test", None]])
    monkeypatch.setattr(dataset, "meta", {"filename": "meta", "key": names_key, "md5": None})
    folder = tmp_path / dataset.base_folder
    pixels = np.random.default_rng(0).integers(0, 256, (8, 3072), dtype=np.uint8)
    write_batch(folder / "train_1", pixels[:3], **{labels_key: [0, 1, 2]})
    write_batch(folder / "train_2", pixels[3:6], **{labels_key: [2, 1, 0]})
    write_batch(folder / "test", pixels[6:], **{labels_key: [1, 2]})
    (folder / "meta").write_bytes(pickle.dumps({names_key: ["a", "b", "c"]}))
    loaded = load_dataset(name, data_dir=tmp_path, cache_dir=tmp_path / "cache")
    assert loaded.train.images.shape == (6, 32, 32, 3)
    # a batch holds each image plane by plane
    assert np.array_equal(loaded.train.images[4, :, :, 1].ravel(), pixels[4, 1024:2048])
    assert np.array_equal(loaded.test.images[1, :, :, 2].ravel(), pixels[7, 2048:])
    assert loaded.train.labels.tolist() == [0, 1, 2, 2, 1, 0]
    assert loaded.test.labels.tolist() == [1, 2]
    assert loaded.classes == ("a", "b", "c")


def test_a_failed_download_says_where_the_files_belong(tmp_path, monkeypatch):
    def no_network(*args, **kwargs):
        raise OSError("no route\nto host")

    from espalier.app.tasks.torchvision_compat import torchvision

    monkeypatch.setattr(torchvision.datasets.cifar, "download_and_extract_archive", no_network)
    with pytest.raises(UserError) as caught:
        load_dataset("cifar10", data_dir=None, cache_dir=tmp_path)
    assert str(caught.value) == (
        "dataset = 'cifar10': cannot be downloaded or read (no route to host): "
        f"put its files into {tmp_path}/downloads/cifar-10-batches-py or set data-dir to where they are"
    )


@pytest.mark.slow
@pytest.mark.skipif(not CIFAR10_ARCHIVE.exists(), reason="the CIFAR-10 archive is not here")
def test_real_cifar10_photographs(tmp_path):
    def first_few(member, path):
        wanted = {"train": "0049", "test": "0009"}
        pool, _, file = member.name.partition("/")
        return tarfile.data_filter(member, path) if Path(file).stem <= wanted[pool] else None

    with tarfile.open(CIFAR10_ARCHIVE) as archive:
        archive.extractall(tmp_path / "cifar10", filter=first_few)
    loaded = load_dataset("image-folder", data_dir=tmp_path / "cifar10", cache_dir=tmp_path / "cache")
    assert loaded.classes == CIFAR10_CLASSES
    assert loaded.train.images.shape == (500, 32, 32, 3)
    assert loaded.test.images.shape == (100, 32, 32, 3)
    assert np.bincount(loaded.train.labels).tolist() == [50] * 10
    # not to the last digit: JPEG decoders differ by a level here and there
    assert loaded.mean == pytest.approx((0.48865, 0.47868, 0.44268), abs=1e-3)
    assert loaded.std == pytest.approx((0.24407, 0.24091, 0.25614), abs=1e-3)


def test_folders_that_differ_in_their_pixels_alone_are_told_apart(tmp_path):
    for name, value in (("dark", 10), ("bright", 200)):
        for pool in ("train", "test"):
            for label in ("ant", "bee"):
                picture = tmp_path / name / pool / label / "0.bmp"
                picture.parent.mkdir(parents=True)
                Image.fromarray(np.full((4, 4, 3), value, dtype=np.uint8)).save(picture)
                os.utime(picture, (0, 0))
    found = [
        load_dataset("image-folder", data_dir=tmp_path / n, cache_dir=tmp_path / "cache") for n in ("dark", "bright")
    ]
    assert [int(data.train.images.max()) for data in found] == [10, 200]
