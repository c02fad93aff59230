"""What an update weighs by its staleness, against the papers' formulas."""

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord

from espalier.strategies.asynchronous import FedAsync, FedBuff, SemiSynchronous, constant, hinge, polynomial


def reference(name: str, tau: int) -> float:
    """Xie et al., Section 5.2, and FedBuff's 1/sqrt(1 + tau)."""
    if name == "constant":
        return 1.0
    if name == "fedbuff":
        return 1 / np.sqrt(1 + tau)
    if name == "polynomial":
        a = 2.0
        return 1 / (tau + 1) ** a
    a, b = 10.0, 4.0
    return 1.0 if tau <= b else 1 / (a * (tau - b) + 1)


@pytest.mark.parametrize(
    ("name", "weight"),
    [("constant", constant), ("fedbuff", polynomial(0.5)), ("polynomial", polynomial(2.0)), ("hinge", hinge(10, 4))],
)
def test_weights_are_the_papers(name, weight):
    assert weight(0) == 1.0
    for tau in range(60):
        assert weight(tau) == pytest.approx(reference(name, tau), rel=1e-15)


def test_what_is_no_weight():
    with pytest.raises(ValueError, match="exponent = -1"):
        polynomial(-1)
    with pytest.raises(ValueError, match="slope, delay"):
        hinge(-1, 4)
    with pytest.raises(ValueError, match="size = 0"):
        FedBuff(0, constant)
    with pytest.raises(ValueError, match="mixing = 0"):
        FedAsync(0, constant)
    with pytest.raises(ValueError, match="deadline_seconds = 0"):
        SemiSynchronous(0, constant)


def record(*values, dtype=np.float32) -> ArrayRecord:
    return ArrayRecord({"w": Array(np.array(values, dtype)), "n": Array(np.array([len(values) * 10]))})


def test_updates_are_placed_on_the_model_of_now():
    model, began_with, update = record(1.0, 2.0), record(0.0, 4.0), record(0.5, 2.0)
    for mode in (FedBuff(2, polynomial(0.5)), SemiSynchronous(3.0, polynomial(0.5))):
        placed = mode.applied(model, began_with, update, 3)
        np.testing.assert_array_equal(placed["w"].numpy(), np.float32([1.25, 1.0]))
        assert placed["w"].dtype == "float32"
        assert mode.applied(model, model, update, 0) is update
    mixed = FedAsync(0.5, hinge(1.0, 0.0)).applied(model, began_with, update, 1)
    np.testing.assert_array_equal(mixed["w"].numpy(), np.float32([0.875, 2.0]))
    assert FedAsync(1.0, constant).applied(model, began_with, update, 5) is update


def test_counters_stay_integers():
    def counter(value):
        return ArrayRecord({"n": Array(np.array(value, np.int64)), "u": Array(np.array([value], np.uint8))})

    placed = FedBuff(1, constant).applied(counter(20), counter(10), counter(5), 1)
    assert placed["n"].numpy() == 15
    assert placed["n"].dtype == "int64"
    assert placed["u"].numpy().tolist() == [15]
