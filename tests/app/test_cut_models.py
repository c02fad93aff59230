"""Models that are cut where much is in the way train as they do whole."""

import json

import pytest
import torch
from torch.nn.functional import cross_entropy

from espalier.app.command_line import main
from tests.app.cut_tasks import Double
from tests.app.runs import key_of, lines, run_app, same_weights, summary, weights

HERE = "tests.app.cut_tasks"
SMALL = {"num_clients": 3, "num_edges": 1, "edge_rounds": 1, "batches_per_epoch": 2, "batch_size": 8, "local_epochs": 1}
MESSAGES, STREAM = {"split_execution": "messages"}, {"split_transport": "stream"}
HEAD, REST = {"tail_layer": "head"}, {"tail_layer": "rest"}
# Layers that take but one memory layout, and layers that write into their inputs, with the ways to cut.
LAYOUTS = [
    ("Viewed", [{"cut_layer": 2}, {"cut_layer": 2} | MESSAGES, {"cut_layer": 2} | STREAM, REST, REST | STREAM]),
    ("InPlace", [{"cut_layer": "1,2"}, {"cut_layer": 1} | MESSAGES, HEAD | STREAM, REST, REST | MESSAGES]),
    ("Pictures", [{"cut_layer": "1,2,3"}, HEAD, REST]),
    ("Pictures(layout='channels-last')", [{"cut_layer": "1,2,3"}, HEAD, REST, REST | MESSAGES]),
    ("InPlace(layout='channels-last')", [{"cut_layer": 1}, REST | STREAM]),
    ("Traced", [{"cut_layer": 1}]),
    ("Traced(at=('features.2','features.3','classifier'))", [{"cut_layer": "1,2"}, HEAD]),
]


def run(folder, name, **settings):
    """Run a task of this folder's; nobody may be left out of anything."""
    folder = run_app(folder, task=f"{HERE}:{name}", **SMALL | settings)
    assert summary(folder)["failures"] == 0
    assert list(lines(folder, "global")[-1]["clients"]) == ["0", "1", "2"]
    return folder


def assert_close(left, right):
    for name, values in weights(left).items():
        torch.testing.assert_close(values, weights(right)[name], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("name", "ways"), LAYOUTS)
def test_sfl_v1_is_fedavg_to_the_bit_whatever_layers_do_with_their_inputs(tmp_path, name, ways):
    whole = run(tmp_path / "fedavg", name, algorithm="fedavg")
    for number, way in enumerate(ways):
        split = run(tmp_path / str(number), name, algorithm="sfl-v1", **way)
        assert same_weights(split, whole), way
        assert lines(split, "global")[-1]["accuracy"] == lines(whole, "global")[-1]["accuracy"]
        assert len(lines(split, "personalised")[0]["clients"]) == 3


@pytest.mark.parametrize(
    ("name", "algorithm", "way"),
    [
        ("Viewed", "sfl-v2", {"cut_layer": 2}),
        ("InPlace", "sfl-v2", STREAM),
        ("InPlace", "phsfl", REST),
        ("InPlace", "sl", MESSAGES),
    ],
)
def test_other_split_algorithms_train_them_too(tmp_path, name, algorithm, way):
    run(tmp_path / "run", name, algorithm=algorithm, **way)


def test_blocks_side_by_side_may_write_into_their_inputs(tmp_path):
    whole = run(tmp_path / "fedavg", "InPlace", algorithm="fedavg")
    split = run(tmp_path / "stack", "InPlace", algorithm="sfl-v1", stack=2)  # the third is alone in its batch
    assert_close(split, whole)


@pytest.mark.parametrize("more", ["", "block"])
def test_a_list_of_a_class_of_its_own_and_hooks_of_blocks_are_cut_as_they_compute(tmp_path, more):
    whole = run(tmp_path / "fedavg", f"OwnList(more={more!r})", algorithm="fedavg")
    for number, way in enumerate(({"cut_layer": "1,2"}, HEAD)):
        assert same_weights(run(tmp_path / str(number), f"OwnList(more={more!r})", algorithm="sfl-v1", **way), whole)


@pytest.mark.parametrize("more", ["forward", "pre-hook", "hook", "training", "gradient", "weights"])
def test_a_model_that_computes_more_than_its_blocks_is_refused_where_it_is_split(tmp_path, capsys, more):
    task = f"{HERE}:OwnList(more={more!r})"
    assert main([f"task={task}", "algorithm=sfl-v1", "num-clients=3", f"output-dir={tmp_path / 'run'}"]) == 2
    error = capsys.readouterr().err
    assert error.startswith(
        f"error: task = {task!r}: allowed is one whose model computes what its blocks do, one after "
    )
    assert error.count("\n") == 1
    run(tmp_path / "fedavg", f"OwnList(more={more!r})", algorithm="fedavg", global_rounds=1)


@pytest.mark.parametrize("by", ["pruning", "weight_norm", "parametrization", "recurrent"])
def test_layers_whose_weights_are_computed_train_as_in_the_whole_model(tmp_path, by):
    task = f"Computed(by={by!r})"
    whole = run(tmp_path / "fedavg", task, algorithm="fedavg")
    for number, way in enumerate(({"cut_layer": 1}, REST, MESSAGES)):
        assert same_weights(run(tmp_path / str(number), task, algorithm="sfl-v1", **way), whole)
    run(tmp_path / "sl", task, algorithm="sl")


@pytest.mark.parametrize("algorithm", ["fedavg", "sfl-v1"])
@pytest.mark.parametrize(
    ("task", "why"),
    [
        (
            "Computed(by='pruning')",
            "its layer 'conv.0' computes its weights from others (weight_mask, weight_orig)",
        ),
        (
            "Computed(by='weight_norm')",
            "its layer 'conv.0' computes its weights from others (weight_g, weight_v)",
        ),
        ("Computed(by='parametrization')", "its layer 'conv.0' is of ParametrizedConv2d: allowed are Conv2d, "),
        ("Locked()", "its layers can't be copied (TypeError: cannot pickle '_thread.lock' object)"),
    ],
)
def test_what_can_not_compute_side_by_side_is_one_line(tmp_path, capsys, algorithm, task, why):
    settings = [f"task={HERE}:{task}", f"algorithm={algorithm}", "stack=2", f"output-dir={tmp_path / 'run'}"]
    assert main(settings) == 2
    error = capsys.readouterr().err
    if (task, algorithm) == ("Locked()", "sfl-v1"):
        allowed = (
            "allowed is one whose model's layers can be copied (TypeError: cannot pickle '_thread.lock' object), for"
        )
        assert error.startswith(f"error: task = '{HERE}:Locked()': {allowed} algorithm = 'sfl-v1'")
    else:
        assert error.startswith(f"error: stack = 2: allowed is 0 for this model: {why}")
    assert error.count("\n") == 1


def test_layers_that_can_not_be_copied_train_where_nothing_is_copied(tmp_path):
    run(tmp_path / "fedavg", "Locked()", algorithm="fedavg")


@pytest.mark.parametrize("algorithm", ["fedavg", "sfl-v1", "hsfl"])
def test_double_precision_computes_side_by_side(tmp_path, algorithm):
    alone, stacked = (run(tmp_path / str(n), "Double", algorithm=algorithm, stack=n) for n in (0, 2))
    for name, values in weights(alone).items():
        torch.testing.assert_close(weights(stacked)[name], values, rtol=1e-12, atol=1e-13)
    for one, other in zip(lines(stacked, "global"), lines(alone, "global"), strict=True):
        assert one["train_loss"] == pytest.approx(other["train_loss"], rel=1e-13)
        assert one["loss"]["mean"] == pytest.approx(other["loss"]["mean"], rel=1e-13)


@pytest.mark.parametrize("settings", [{}, {"stack": 2}, {"algorithm": "sfl-v1"}, {"algorithm": "sfl-v1", "stack": 2}])
def test_losses_of_double_precision_are_not_rounded_to_single(tmp_path, settings):
    whole = {"batch_size": 40, "batches_per_epoch": 1, "global_rounds": 1, "learning_rate": 1e-9}
    folder = run(tmp_path / "run", "Double", **{"algorithm": "fedavg", **whole, **settings})
    task = Double()
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        model = task.model()
    parts = [task.client_data(client, 3, 0) for client in range(3)]
    trained = [cross_entropy(model.train()(train.inputs.double()), train.labels).item() for train, _ in parts]
    (line,) = lines(folder, "global")
    assert line["train_loss"] == pytest.approx(sum(trained) / 3, rel=1e-13)
    model.load_state_dict(weights(folder))
    for client, (_, test) in enumerate(parts):
        expected = cross_entropy(model.eval()(test.inputs.double()), test.labels).item()
        assert line["clients"][str(client)]["loss"] == pytest.approx(expected, rel=1e-13)


BEHIND_BODY = "one whose model trains where it is cut behind 'body' (ValueError: activations "


@pytest.mark.parametrize("way", [{}, STREAM | {"payload": "int8"}, {"algorithm": "sfl-v2"}])
@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("dtype", BEHIND_BODY + "have dtype torch.float64, expected torch.float32), for algorithm = 'sfl-v"),
        ("time first", BEHIND_BODY + "of shape (5, 32, 6, 6) have no row for each of 32 examples)"),
        ("head", "one whose model takes its data (RuntimeError: mat1 and mat2 shapes cannot be multiplied "),
        ("half", "one whose model trains where it is cut behind 'body' (RuntimeError: "),
    ],
)
def test_what_is_in_the_way_of_a_split_step_is_one_line_before_the_run(tmp_path, capsys, what, message, way):
    settings = {"algorithm": "sfl-v1", "cut_layer": 2, **way}
    task = f"{HERE}:Misfit(what={what!r})"
    values = [f"{key_of(key)}={json.dumps(value)}" for key, value in settings.items()]
    assert main([f"task={task}", f"output-dir={tmp_path / 'run'}", *values]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: task = {task!r}: allowed is {message}")
    assert error.count("\n") == 1


@pytest.mark.parametrize("what", ["dtype", "time first"])
def test_a_cut_where_nothing_is_in_the_way_is_taken(tmp_path, what):
    task = f"Misfit(what={what!r})"
    whole = run(tmp_path / "fedavg", task, algorithm="fedavg")
    assert same_weights(run(tmp_path / "sfl-v1", task, algorithm="sfl-v1", cut_layer="1,3"), whole)


@pytest.mark.parametrize("where", ["prepare", "layer"])
def test_a_task_that_draws_by_itself_is_taken(tmp_path, where):
    run(tmp_path / "run", f"Noisy(where={where!r})", algorithm="sfl-v1")


def test_halves_that_can_not_compute_side_by_side_are_one_line_though_whole_models_can(tmp_path, capsys):
    task = f"{HERE}:Misfit(what='mixed')"
    run(tmp_path / "fedavg", "Misfit(what='mixed')", algorithm="fedavg", stack=2)
    run(tmp_path / "alone", "Misfit(what='mixed')", algorithm="sfl-v1")
    capsys.readouterr()
    assert main([f"task={task}", "algorithm=sfl-v1", "stack=2", f"output-dir={tmp_path / 'run'}"]) == 2
    error = capsys.readouterr().err
    assert error.startswith(
        "error: stack = 2: allowed is 0 for this model where it is cut behind 'conv': models side by "
    )
    assert error.count("\n") == 1
