"""To a strategy the content of a screened reply is like Flower's own, whose views are the reference here."""

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from espalier.clients.shared.records import records_in
from espalier.strategies.screened_content import ScreenedContent, mark_screened

VIEWS = {"array_records": ArrayRecord, "metric_records": MetricRecord, "config_records": ConfigRecord}


def content():
    return RecordDict(
        {
            "metrics": MetricRecord({"num-examples": 3, "train_loss": 0.5}),
            "arrays": ArrayRecord({"w": Array(np.arange(3.0))}),
            "more": ArrayRecord(),
            "config": ConfigRecord({"a": "b"}),
        }
    )


def screened():
    marked = content()
    mark_screened(marked)
    return marked


@pytest.mark.parametrize(("view", "kind"), VIEWS.items())
def test_views_hold_what_flowers_hold(view, kind):
    ours, flowers = getattr(screened(), view), getattr(content(), view)
    assert list(ours.items()) == list(flowers.items()) == list(records_in(content(), kind).items())
    assert (len(ours), list(ours), "arrays" in ours) == (len(flowers), list(flowers), "arrays" in flowers)
    assert list(ours.values()) == list(flowers.values())


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("change", [lambda v: v.pop(next(iter(v))), lambda v: v.clear()])
def test_what_is_removed_from_a_view_is_removed_from_the_content(view, change):
    ours, flowers = screened(), content()
    for whole in (ours, flowers):
        change(getattr(whole, view))
    assert list(ours.items()) == list(flowers.items())
    assert len(ours) < 4


@pytest.mark.parametrize("change", [lambda v, r: v.update(new=r), lambda v, r: v.setdefault("new", r)])
def test_what_is_put_into_a_view_is_put_into_the_content(change):
    ours, flowers = screened(), content()
    for whole in (ours, flowers):
        change(whole.metric_records, MetricRecord({"x": 1.0}))
    assert list(ours.items()) == list(flowers.items())
    assert ours["new"] == MetricRecord({"x": 1.0})


def test_it_is_equal_and_is_sent_as_flowers_own():
    assert isinstance(screened(), ScreenedContent)
    assert isinstance(screened().copy(), ScreenedContent)
    assert screened() == content()
    assert screened().object_id == content().object_id
    assert RecordDict.inflate(screened().deflate(), screened().children) == content()
    assert repr(screened().array_records["more"]) == repr(content()["more"])
