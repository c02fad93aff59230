"""Evaluation through the cut: the figures of the whole model to the bit, and nobody gets other blocks than its own."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from flwr.app import ArrayRecord

from espalier.app.tasks.models import build_model
from espalier.strategies import ask_profiles
from espalier.strategies.exchange import converse
from espalier.strategies.split import Cut, FineTuning, Relay, SplitFedV1, SplitFedV2
from espalier.strategies.views import MemberGrid
from tests.strategies.split.federation import Federation, every, examples, weights
from tests.strategies.split.test_fine_tuning import model_with_dropout_and_norm
from tests.strategies.split.test_u_shape import Recorded

CUTS = [1, 3, Cut(1, 3), Cut(2, 3)]
SIZES = (20, 33)


def figures(outcome):
    return {n: dict(metrics) for n, metrics in outcome.evaluations["edge-0"].replies.items()}


@pytest.mark.parametrize("cut", CUTS)
def test_figures_are_those_of_the_whole_model_to_the_bit(cut):
    make = partial(build_model, "cnn", image_shape=(3, 16, 16), num_classes=4, seed=1)
    federation = Federation(make, sizes=SIZES, shape=(3, 16, 16), classes=4)
    whole, split = (
        federation.run(federation.split(SplitFedV1, every(cut), evaluates_whole=way), rounds=1)[-1]
        for way in (True, False)
    )
    assert figures(whole) == figures(split)


@pytest.mark.parametrize(("kind", "cut"), [(SplitFedV1, every(Cut(1, 2))), (SplitFedV2, 2), (Relay, Cut(1, 3))])
def test_a_test_set_of_several_batches_is_evaluated_as_the_whole_model_would(kind, cut):
    federation = Federation(sizes=SIZES)
    federation.tasks[1] = replace(federation.tasks[1], test=examples(700, 5))
    whole, split = (
        federation.run(federation.split(kind, cut, evaluates_whole=way), rounds=1)[-1] for way in (True, False)
    )
    assert figures(whole) == figures(split)
    assert {metrics["num-examples"] for metrics in figures(split).values()} == {30, 700}


def arrays_of(content):
    return {(record, name) for record, arrays in content.array_records.items() for name in arrays}


@pytest.mark.parametrize(("kind", "cut"), [(SplitFedV1, every(Cut(1, 3))), (SplitFedV1, every(2)), (Relay, Cut(2, 3))])
def test_no_client_is_sent_other_blocks_than_its_own(kind, cut):
    federation = Federation(sizes=SIZES)
    recorded = Recorded(federation.app())
    federation.run(federation.split(kind, cut, evaluates_whole=False), rounds=2, grid=federation.grid(recorded))
    one = cut(0) if callable(cut) else cut
    cut = Cut.of(federation.make_model(), one)
    blocks = [name for name, _ in federation.make_model().named_children()]
    others = tuple(f"{name}." for name in blocks[cut.first : cut.last])
    seen = {name for message, reply in recorded.exchanges for _, name in arrays_of(message.content)}
    assert any(name.startswith("first.") for name in seen)
    assert not [name for name in seen if name.startswith(others)]


def test_a_client_that_sends_what_does_not_fit_is_left_out_of_the_evaluation():
    federation = Federation(sizes=SIZES)
    app = federation.app()

    def answer(message, context):
        reply = app(message, context)
        if (message.metadata.message_type, context.node_config["partition-id"]) == ("evaluate.split_front", 1):
            reply.content["activations"] = ArrayRecord({"0": reply.content["activations"]["0"]})
            reply.content["activations"]["0"] = ArrayRecord([torch.ones(30, 5).double().numpy()])["0"]
        return reply

    make_edge = federation.split(SplitFedV1, every(2), evaluates_whole=False)
    (outcome,) = federation.run(make_edge, rounds=1, grid=federation.grid(answer))
    (failure,) = outcome.evaluations["edge-0"].failures
    assert "activations have shape (30, 5), expected" in failure.reason
    assert len(figures(outcome)) == 1


def personalised(federation, cut, app=None, frozen=None, **options):
    grid = federation.grid(app)
    members = [profile.node_id for profile in ask_profiles(grid)]
    edge = federation.split(SplitFedV1, every(cut), frozen=frozen, **options)("edge-0", len(members))
    arrays = ArrayRecord(federation.make_model().state_dict())
    result = converse(grid, {"": edge.personalise(arrays, FineTuning(3, 0.05), MemberGrid(grid, members))})[""]
    return result, {i: dict(result.metrics[n]) for i, n in enumerate(members)}


def test_heads_that_are_fine_tuned_on_devices_do_as_those_at_the_edge_and_stay_there():
    federation = Federation(model_with_dropout_and_norm, sizes=SIZES)
    at_edge, expected = personalised(federation, 2)
    through_cut, same = personalised(federation, 2, evaluates_whole=False)
    assert set(at_edge.heads) == set(through_cut.heads)
    recorded = Recorded(federation.app())
    for cut in (Cut(1, 3), Cut(1, 2)):
        on_device, found = personalised(federation, cut, recorded)
        assert not on_device.heads
        assert not on_device.failures
        assert found == same == expected
    replies = {name for _, reply in recorded.exchanges if reply.has_content() for name in arrays_of(reply.content)}
    assert not [name for _, name in replies if name.startswith("head.")]


def test_a_client_that_fails_at_its_head_is_left_out():
    federation = Federation(sizes=SIZES)
    app = federation.app()

    def answer(message, context):
        if (message.metadata.message_type, context.node_config["partition-id"]) == ("train.split_head", 0):
            raise RuntimeError("the battery is empty")
        return app(message, context)

    grid = federation.grid(answer)
    members = [profile.node_id for profile in ask_profiles(grid)]
    edge = federation.split(SplitFedV1, every(Cut(1, 3)))("edge-0", 2)
    arrays = ArrayRecord(federation.make_model().state_dict())
    result = converse(grid, {"": edge.personalise(arrays, FineTuning(3, 0.05), MemberGrid(grid, members))})[""]
    (failure,) = result.failures
    assert (failure.node_id, "the battery is empty" in failure.reason) == (members[0], True)
    assert list(result.metrics) == members[1:]


# What a device may send in a U-shaped run, by the type of what it answers: records, and the names in them.
WEIGHTS = "weights of its own blocks"
ALLOWED = {
    "query.profile": {"profile": None},
    "train.split_begin": {"activations": {"activations"}, "metrics": {"step", "num-steps", "num-examples"}},
    "train.split_tail": {"feature-gradient": {"feature-gradient"}, "metrics": {"step"}},
    "train.split_step": {"activations": {"activations"}, "metrics": {"step", "num-steps", "num-examples"}},
    "train.split_end": {"client-block": WEIGHTS, "metrics": {"num-examples", "step", "train_loss"}},
    "train.split_features": {"activations": {"0", "1", "2"}, "metrics": {"num-examples"}},
    "train.split_head": {},
    "evaluate.split_front": {"activations": {"0"}},
    "evaluate.split_outputs": {"metrics": {"loss", "accuracy", "num-examples"}},
}


def head_of(model):
    return ArrayRecord({f"head.{name}": array for name, array in ArrayRecord(model.head.state_dict()).items()})


@pytest.mark.parametrize("is_frozen", [False, True])
def test_every_record_that_leaves_a_device_is_one_of_these(is_frozen):
    """No label, no index, no loss of a sample; no weight of a frozen head, as in PHSFL, and of a personal one."""
    federation = Federation(sizes=SIZES)
    frozen = head_of(federation.make_model()) if is_frozen else None
    recorded = Recorded(federation.app())
    make_edge = federation.split(SplitFedV1, every(Cut(1, 3)), frozen=frozen, evaluates_whole=False)
    federation.run(make_edge, rounds=2, grid=federation.grid(recorded))
    personalised(federation, Cut(1, 3), recorded, frozen)
    seen = set()
    for message, reply in recorded.exchanges:
        kind = message.metadata.message_type
        seen.add(kind)
        assert not reply.has_error()
        assert set(reply.content) == set(ALLOWED[kind]), kind
        for record, names in ALLOWED[kind].items():
            if names is None:
                continue
            if names == WEIGHTS:
                names = {n for n in federation.make_model().state_dict() if n.startswith(("first.", "head."))}
                names = {n for n in names if not (is_frozen and n.startswith("head."))}
            assert set(reply.content[record]) == names, (kind, record)
            values = reply.content[record].values()
            assert all(not isinstance(value, list) for value in values)
            if record in ("activations", "feature-gradient"):  # no numbers for samples beside their values
                assert all(array.dtype == "float64" and len(array.shape) > 1 for array in values)
    assert seen == set(ALLOWED)


def test_a_frozen_head_on_the_devices_is_that_at_the_edge():
    federation = Federation(sizes=SIZES)
    frozen = head_of(federation.make_model())
    one, two = (
        weights(federation.run(federation.split(SplitFedV1, every(cut), frozen=frozen), rounds=2)[-1])
        for cut in (1, Cut(1, 3))
    )
    assert one.keys() == two.keys()
    assert not [name for name in two if name.startswith("head.")]
    for name in one:
        torch.testing.assert_close(one[name], two[name], rtol=1e-9, atol=1e-9)
