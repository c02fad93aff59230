import os
import shutil

import numpy as np
import pytest
from PIL import Image

from espalier.app.ground.errors import UserError
from espalier.app.tasks import image_folder
from espalier.app.tasks.data import load_pool
from espalier.app.tasks.image_data import load_pool as load_saved
from espalier.app.tasks.image_data import save_pool
from espalier.app.tasks.image_folder import list_pool

CLASSES = ("dog", "cat", "ant")


def put(file, value):
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((4, 4, 3), value, dtype=np.uint8)).save(file)


@pytest.fixture
def pool(tmp_path):
    folder = tmp_path / "images" / "train"
    for name, values in (("cat", (10, 11)), ("dog", (20, 21, 22))):
        for i, value in enumerate(values):
            put(folder / name / f"{i}.bmp", value)
    return folder


def load(pool, cache, classes=CLASSES, image_size=4):
    return load_pool(pool, classes=classes, image_size=image_size, cache_dir=cache)


def test_labels_follow_the_order_of_the_classes_and_classes_may_be_missing(pool):
    files, labels = list_pool(pool, CLASSES)
    assert [str(file.relative_to(pool)) for file in files] == [
        "dog/0.bmp",
        "dog/1.bmp",
        "dog/2.bmp",
        "cat/0.bmp",
        "cat/1.bmp",
    ]
    assert labels.tolist() == [0, 0, 0, 1, 1]
    assert labels.dtype == np.int64
    (pool / "ant").mkdir()
    (pool / ".hidden").mkdir()
    assert list_pool(pool, CLASSES)[1].tolist() == [0, 0, 0, 1, 1]
    files, labels = list_pool(pool.parent / "test", CLASSES)
    assert (files, labels.tolist(), labels.dtype) == ([], [], np.int64)


def test_a_class_that_is_not_the_runs_is_named(pool):
    (pool / "cow").mkdir()
    with pytest.raises(UserError) as caught:
        list_pool(pool, CLASSES)
    assert str(caught.value) == (f"{pool}/cow: class 'cow' is not one of the run's: allowed are dog, cat, ant")


def test_a_pool_comes_back_pixel_by_pixel_and_is_decoded_once(pool, tmp_path, monkeypatch):
    first = load(pool, tmp_path / "cache")
    assert first.images[:, 3, 2, 1].tolist() == [20, 21, 22, 10, 11]
    assert first.labels.tolist() == [0, 0, 0, 1, 1]
    assert isinstance(first.images, np.memmap)
    monkeypatch.setattr(image_folder, "decode_image", None)
    again = load(pool, tmp_path / "cache")
    assert np.array_equal(again.images, first.images)
    assert np.array_equal(again.labels, first.labels)


def test_an_empty_pool_has_the_shape_of_others_and_is_not_kept(tmp_path):
    empty = load(tmp_path / "nothing", tmp_path / "cache", image_size=6)
    assert empty.images.shape == (0, 6, 6, 3)
    assert (empty.images.dtype, empty.labels.dtype) == (np.uint8, np.int64)
    assert not (tmp_path / "cache").exists()


def test_folders_whose_files_look_alike_are_told_apart(pool, tmp_path):
    """Files of two devices can have the same names, sizes and times."""
    twin = tmp_path / "twin" / "train"
    shutil.copytree(pool, twin)
    for file in twin.rglob("*.bmp"):
        before = file.stat()
        put(file, 99)
        assert file.stat().st_size == before.st_size
    for file in (*pool.rglob("*.bmp"), *twin.rglob("*.bmp")):
        os.utime(file, ns=(1, 1))
    assert load(pool, tmp_path / "cache").images.max() == 22
    assert load(twin, tmp_path / "cache").images.min() == 99


def test_a_changed_file_another_size_and_other_classes_are_seen(pool, tmp_path):
    cache = tmp_path / "cache"
    load(pool, cache)
    put(pool / "cat/0.bmp", 7)
    os.utime(pool / "cat/0.bmp", ns=(1, 1))
    assert load(pool, cache).images[:, 0, 0, 0].tolist() == [20, 21, 22, 7, 11]
    assert load(pool, cache, image_size=2).images.shape == (5, 2, 2, 3)
    turned = load(pool, cache, classes=("cat", "dog"))
    assert turned.images[:, 0, 0, 0].tolist() == [7, 11, 20, 21, 22]
    assert turned.labels.tolist() == [0, 0, 1, 1, 1]


def test_a_damaged_cache_is_built_again(pool, tmp_path):
    load(pool, tmp_path / "cache")
    (entry,) = (tmp_path / "cache").iterdir()
    images = entry / "train-images.npy"
    images.write_bytes(images.read_bytes()[:-1])
    assert load(pool, tmp_path / "cache").images[:, 0, 0, 0].tolist() == [20, 21, 22, 10, 11]


def test_a_saved_pool_is_checked(tmp_path):
    images = np.arange(2 * 3 * 3 * 3, dtype=np.uint8).reshape(2, 3, 3, 3)
    assert save_pool(tmp_path, "test", iter(images), np.array([0, 2])) == (2, 3, 3, 3)
    assert np.array_equal(load_saved(tmp_path, "test", (2, 3, 3, 3), 3).images, images)
    for shape, num_classes in (((3, 3, 3, 3), 3), ((2, 3, 3, 1), 3), ((2, 3, 3, 3), 2)):
        with pytest.raises(ValueError, match="not a saved pool"):
            load_saved(tmp_path, "test", shape, num_classes)
    with pytest.raises(ValueError, match="not a saved pool"):
        load_saved(tmp_path, "train", (2, 3, 3, 3), 3)
