"""Data sets that a user's own function returns."""

import numpy as np
import pytest

from espalier.app.ground.errors import UserError
from espalier.app.tasks.data import load_dataset
from espalier.app.tasks.image_data import channel_statistics
from tests.app.runs import run_app, same_weights, summary

HERE = __name__


def digits(data_dir, names=False):
    """Those that come with the app."""
    loaded = load_dataset("digits", data_dir=None, cache_dir=data_dir)
    pools = [(pool.images[..., 0] if not names else pool.images, pool.labels) for pool in (loaded.train, loaded.test)]
    return (*pools, loaded.classes) if names else tuple(pools)


def wrong(what):
    images, labels = np.zeros((6, 8, 8, 3), dtype=np.uint8), np.arange(6) % 3
    return {
        "floats": ((images / 255, labels), (images, labels)),
        "labels": ((images, labels[1:]), (images, labels)),
        "shape": ((images[0, 0], labels), (images, labels)),
        "sizes": ((images, labels), (images[:, :4], labels)),
        "negative": ((images, labels - 1), (images, labels)),
        "huge": ((images, labels + (labels == 2) * 2_000_000_000), (images, labels)),
        "unseen": ((images, labels % 2), (images, labels)),
        "names": ((images, labels), (images, labels), ["a"]),
        "one": ((images, labels),),
        "nothing": None,
    }[what]


@pytest.mark.parametrize("text", ["digits", "digits(names=True)"])
def test_the_digits_of_ones_own_are_those_of_the_app_to_the_bit(tmp_path, text):
    settings = {"num_clients": 4, "global_rounds": 1, "edge_rounds": 1, "local_epochs": 1, "model": "small-cnn"}
    built_in = run_app(tmp_path / "built-in", **settings, dataset="digits")
    own = run_app(tmp_path / "own", **settings, dataset=f"{HERE}:{text}", data_dir=str(tmp_path / "cache"))
    assert same_weights(built_in, own)
    assert (summary(built_in)["test"], summary(own)["dataset"]) == (summary(own)["test"], "digits")


def test_its_statistics_are_those_of_the_training_pool(tmp_path):
    loaded = load_dataset(f"{HERE}:digits", data_dir=tmp_path, cache_dir=tmp_path)
    assert (loaded.mean, loaded.std) == channel_statistics(loaded.train.images)
    assert loaded.classes == tuple("0123456789")
    assert not loaded.train.images.flags.writeable


@pytest.mark.parametrize(
    ("what", "reason"),
    [
        ("floats", "ValueError: images are float64, not uint8"),
        ("labels", "ValueError: labels are int64 (5,), not integers (6,)"),
        ("shape", "ValueError: images have the shape (8, 3), not (N, height, width, channels)"),
        ("sizes", "ValueError: images to train on are (8, 8, 3), and to test on (4, 8, 3)"),
        ("negative", "ValueError: labels are from 0 to 99999 at most, not from -1 to 1"),
        ("huge", "ValueError: labels are from 0 to 99999 at most, not from 0 to 2000000002"),
        ("unseen", "ValueError: class 2 is in the test pool alone"),
        ("names", "ValueError: 1 names of classes for 3"),
        ("one", "ValueError: not enough values to unpack (expected 2, got 1)"),
        ("nothing", "TypeError: 'NoneType' object is not subscriptable"),
    ],
)
def test_what_is_no_data_set_is_named(tmp_path, what, reason):
    text = f"{HERE}:wrong(what={what!r})"
    with pytest.raises(UserError) as caught:
        load_dataset(text, data_dir=None, cache_dir=tmp_path)
    wanted = "a function that returns (train_images, train_labels), (test_images, test_labels)"
    assert str(caught.value) == f"dataset = {text!r}: allowed is {wanted} ({reason})"


def test_a_function_that_fails_and_a_size_for_it_are_refused(tmp_path):
    with pytest.raises(UserError, match=r"allowed is what takes what and does not fail \(KeyError: 'x', test_own_data"):
        load_dataset(f"{HERE}:wrong(what='x')", data_dir=None, cache_dir=tmp_path)
    with pytest.raises(UserError, match=r"data.image-size = 8: allowed is 0 where dataset = "):
        load_dataset(f"{HERE}:digits", data_dir=None, cache_dir=tmp_path, image_size=8)
