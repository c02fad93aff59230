import numpy as np
import pytest

from espalier.app.tasks.image_data import channel_statistics, load, save


@pytest.fixture
def saved(tmp_path):
    images = np.random.default_rng(0).integers(0, 256, (7, 4, 5, 3), dtype=np.uint8)
    save(tmp_path, images, train_labels=[0, 1, 2, 0, 1], test_labels=[2, 1], classes=["a", "b", "c"])
    return tmp_path, images


def test_what_is_saved_is_loaded_as_read_only_memory_maps(saved):
    folder, images = saved
    data = load(folder)
    assert np.array_equal(data.train.images, images[:5])
    assert np.array_equal(data.test.images, images[5:])
    assert data.train.labels.tolist() == [0, 1, 2, 0, 1]
    assert data.test.labels.tolist() == [2, 1]
    assert data.classes == ("a", "b", "c")
    for array in (data.train.images, data.train.labels, data.test.images, data.test.labels):
        assert isinstance(array, np.memmap)
        assert not array.flags.writeable
    assert data.train.labels.dtype == np.int64


def test_the_statistics_are_those_of_the_training_pool(saved):
    folder, images = saved
    data = load(folder)
    scaled = images[:5] / 255
    np.testing.assert_allclose(data.mean, scaled.mean(axis=(0, 1, 2)), rtol=1e-12)
    np.testing.assert_allclose(data.std, scaled.std(axis=(0, 1, 2)), rtol=1e-12)


def test_statistics_of_many_images_and_of_a_channel_that_never_varies():
    images = np.random.default_rng(0).integers(0, 256, (2500, 3, 3, 2), dtype=np.uint8)
    images[..., 1] = 51
    mean, std = channel_statistics(images)
    assert mean == pytest.approx((images[..., 0].mean() / 255, 0.2), rel=1e-12)
    assert std == pytest.approx((images[..., 0].std() / 255, 1.0), rel=1e-12)


def damage_by_truncation(folder):
    file = folder / "train-images.npy"
    file.write_bytes(file.read_bytes()[:-1])


def damage_by_emptying(folder):
    (folder / "test-images.npy").write_bytes(b"")


def damage_by_removal(folder):
    (folder / "test-labels.npy").unlink()


def damage_in_meta(folder):
    (folder / "meta.json").write_text("{")


def damage_in_type_of_meta(folder):
    (folder / "meta.json").write_text("[]")


def damage_in_image_shape(folder):
    np.save(folder / "train-images.npy", np.zeros((5, 4, 4, 3), dtype=np.uint8))


def damage_in_image_type(folder):
    np.save(folder / "train-images.npy", np.zeros((5, 4, 5, 3)))


def damage_in_label_count(folder):
    np.save(folder / "train-labels.npy", np.array([0, 1, 2, 0]))


def damage_in_label_range(folder):
    np.save(folder / "train-labels.npy", np.array([0, 1, 2, 0, 3]))


@pytest.mark.parametrize("damage", [value for name, value in sorted(globals().items()) if name.startswith("damage_")])
def test_damage_is_noticed(saved, damage):
    folder, _ = saved
    load(folder)
    damage(folder)
    with pytest.raises(ValueError, match="not a saved data set"):
        load(folder)
