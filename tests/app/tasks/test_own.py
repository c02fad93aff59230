"""Tasks of users' own: what they may leave out, and what is said of those that don't fit."""

import json

import pytest
import torch

from espalier.app.command_line import main
from espalier.app.config.parse import parse_config
from espalier.app.ground.errors import UserError
from espalier.app.reports.final import draw_run, report_again
from espalier.app.reports.folder import ResultsFolder
from espalier.app.reports.plots import draw_plots
from espalier.app.reports.saved import saved_config
from espalier.app.tasks.node import ClientNode
from espalier.app.wiring.clients import ClientTasks
from espalier.app.wiring.task_of_run import build_task
from tests.app.own_tasks import TAKEN, Steered
from tests.app.runs import lines, rows_of_clients, run_app, same_weights, summary, weights

HERE = "tests.app.own_tasks"
SMALL = {"num_clients": 4, "edge_rounds": 2, "local_epochs": 1, "batch_size": 8, "learning_rate": 0.3}


def own(name):
    return f"{HERE}:{name}"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("Points", "allowed is '' for that of dataset, or package.module:NAME(argument=value, ...) of your own"),
        (
            own("Points(1)"),
            "allowed is '' for that of dataset, or package.module:NAME(argument=value, ...) of your own",
        ),
        ("no.such:Points", "allowed is what can be imported (ModuleNotFoundError: No module named 'no')"),
        (own("Nothing"), "allowed is what can be imported (AttributeError: module "),
        (own("NotATask"), "allowed is a subclass of espalier.app.tasks.OwnTask"),
        (own("NoData"), "allowed is one that has client_data() or pool()"),
        (own("Points(size=3)"), "allowed is what Points takes (TypeError: "),
        (
            own("Uneven"),
            "allowed is one whose client_data(0, 8, 0) does not fail (ValueError: inputs have 30 examples, labels 29: ",
        ),
        (own("Narrow"), "allowed is one whose model takes its data (TypeError: "),
        (own("Counting"), "allowed is one whose buffers with persistent=False stay as they are, for no message holds "),
        (own("Spectral"), "allowed is one whose weights are real numbers, not torch.complex64 as spectrum"),
        (own("Typed(dtype='bfloat16')"), "allowed is one whose weights NumPy has a type for, not torch.bfloat16 as "),
        (
            own("Odd(what='mask')"),
            "allowed is one whose weights begin finite, not NaN or Inf as join.mask: a buffer that is a constant, such",
        ),
        (
            own("Odd(what='outputs')"),
            "allowed is one whose model gives a row for each example, not outputs (3, 32) for 32\n",
        ),
        (
            own("Odd(what='numbers')"),
            "allowed is one whose client_data(0, 8, 0) gives classes from 0 to 99999, not 300002; numbers that are no ",
        ),
        (
            own("Odd(what='list')"),
            "allowed is one whose client_data(0, 8, 0) gives client 0 Examples to train on, at least one, with a label "
            "for each (TypeError: labels are a list, not a tensor)",
        ),
        (
            own("Odd(what='nothing')"),
            "allowed is one whose client_data(0, 8, 0) gives client 0 Examples to train on, at least one, with a label "
            "for each (ValueError: none)",
        ),
        (
            own("Odd(what='shape')"),
            "allowed is one whose client_data() gives all clients rows of one form, as client 0 (((), ()), ()), not "
            "(((1,), (1,)), ()) as client 2\n",
        ),
        (
            own("Named(third='z')"),
            "allowed is one whose client_data() gives all clients rows of one form, as client 0 ({'x': (), 'y': ()}, "
            "()), not ({'y': (), 'z': ()}, ()) as client 3\n",
        ),
        (own("One"), "allowed is one whose client_data(0, 8, 0) returns two Examples, to train on and to test on"),
    ],
)
def test_a_task_that_does_not_fit_is_one_line_before_training(tmp_path, capsys, text, message):
    assert main([f"task={text}", f"output-dir={tmp_path / 'run'}"]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: task = {text!r}: {message}")
    assert error.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_a_buffer_that_stays_and_does_not_travel_may_be_sparse(tmp_path):
    assert lines(run_app(tmp_path / "run", task=own("Odd(what='sparse')"), global_rounds=1), "global")


LOSS = "one whose loss(outputs, labels) takes what its model gives, and its labels (RuntimeError: "
MEAN = "one whose loss(outputs, labels) gives the mean, a tensor () with a gradient, not "
FIGURES = "one whose metrics(outputs, labels) returns numbers by name ("


MISFITS = [
    ("frozen", "one whose model has weights that train"),
    ("float", LOSS),
    ("negative", "one whose loss(outputs, labels) takes what its model gives, and its labels (IndexError: "),
    ("raises", LOSS + "of mine, own_tasks.py:"),
    ("vector", MEAN + "a tensor of shape (32,)"),
    ("detached", MEAN + "a tensor of shape () without one"),
    ("number", MEAN + "a float"),
    ("text", "one whose learning_rate(rate, server_round) gives a number from 0 on (ValueError: "),
    ("below", "one whose learning_rate(rate, server_round) gives a number from 0 on, not -1.0"),
    (
        "none",
        "one whose optimizer(parameters, learning_rate) returns a torch.optim.Optimizer, not a NoneType",
    ),
    ("closure", "one whose optimizer makes a step by the gradients alone (TypeError: "),
    ("no mapping", FIGURES + "TypeError: it returns a NoneType)"),
    ("no number", FIGURES + "ValueError: could not convert string to float"),
    ("list", FIGURES),
    ("unnamed", "one whose metrics() have names of 1 to 89 characters that can be printed, not ''"),
    ("long", "one whose metrics() have names of 1 to 89 characters that can be printed, not 'aaaaa"),
    *(
        (
            name,
            "one whose metrics() have names that a run does not use itself, and that do not begin with 'train_', ",
        )
        for name in TAKEN
    ),
]
NOT_SPLIT_EITHER = ("frozen", "float", "negative")  # which is said first


@pytest.mark.parametrize(
    ("algorithm", "wrong", "message"),
    [("h-fedavg", *one) for one in MISFITS] + [("phsfl", *one) for one in MISFITS if one[0] not in NOT_SPLIT_EITHER],
)
def test_what_does_not_fit_shows_in_a_trial_before_training(tmp_path, capsys, algorithm, wrong, message):
    text = own(f"Misfit(wrong={wrong!r})")
    assert main([f"algorithm={algorithm}", f"task={text}", f"output-dir={tmp_path / 'run'}"]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: task = {text!r}: allowed is {message}")
    assert error.count("\n") == 1
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("dict", "one whose model's state_dict() holds tensors, not a dict as _extra_state, which would not travel"),
        ("fails", "one whose model()'s state_dict() does not fail (KeyError: 'seen', own_tasks.py:"),
        ("another", "one whose model keeps its weights and buffers when it computes: another model can't take seen1; "),
        ("longer", "one whose model keeps the shapes of its weights and buffers: seen becomes (2,), not (1,)"),
    ],
)
def test_a_model_whose_state_would_not_travel_is_one_line_before_training(tmp_path, capsys, what, message):
    text = own(f"Kept(what={what!r})")
    assert main([f"task={text}", f"output-dir={tmp_path / 'run'}"]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: task = {text!r}: allowed is {message}")
    assert error.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_extra_state_that_is_a_tensor_travels(tmp_path):
    folder = run_app(tmp_path / "run", task=own("Kept(what='tensor')"), num_clients=2, num_edges=1)
    assert weights(folder)["_extra_state"].tolist() == [2.5]
    assert summary(folder)["failures"] == 0


@pytest.mark.parametrize("algorithm", ["h-fedavg", "phsfl"])
@pytest.mark.parametrize(
    ("method", "call"),
    [
        ("model", "model()"),
        ("client_data", "client_data(0, 8, 0)"),
        ("test_data", "test_data()"),
        ("fingerprint", "fingerprint()"),
        ("prepare", "prepare(inputs)"),
    ],
)
def test_a_method_that_fails_is_named_with_the_line_of_its_file(tmp_path, capsys, algorithm, method, call):
    text = own(f"Fails(method={method!r})")
    assert main([f"algorithm={algorithm}", f"task={text}", f"output-dir={tmp_path / 'run'}"]) == 2
    error = capsys.readouterr().err
    allowed = f"one whose {call} does not fail (KeyError: 'age', own_tasks.py:"
    assert error.splitlines()[-1].startswith(f"error: task = {text!r}: allowed is {allowed}")
    assert "Traceback" not in error
    assert not list(tmp_path.rglob("metrics.jsonl"))


def test_a_loss_that_fails_in_an_evaluation_is_named_with_the_line_of_its_file(tmp_path, capsys):
    text = own("Odd(what='many')")
    assert main([f"task={text}", f"output-dir={tmp_path / 'run'}"]) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    allowed = "one whose loss(outputs, labels) does not fail (RuntimeError: too many, own_tasks.py:"
    assert error.startswith(f"error: task = {text!r}: allowed is {allowed}")


@pytest.mark.parametrize("size", [1, 512, 1025])
@pytest.mark.parametrize(
    "settings",
    [
        {"algorithm": "fedavg"},
        {"algorithm": "hsfl", "evaluate": "split"},
        {"algorithm": "hsfl", "evaluate": "whole"},
        {"algorithm": "phsfl", "tail_layer": "head"},
    ],
    ids=lambda settings: "-".join(settings.values()),
)
def test_a_loss_of_its_own_is_that_of_all_test_examples_at_once(tmp_path, settings, size):
    mine = {"task": own(f"Weighted(size={size})"), "num_clients": 2, "global_rounds": 1, "batch_size": 8}
    folder = run_app(tmp_path / "run", device="cpu", **mine, **settings)
    task = build_task(saved_config(folder))
    model = task.new_model()

    @torch.inference_mode()
    def at_once(examples, head=None):
        model.load_state_dict(weights(folder) | (head or {}))
        return pytest.approx(float(task.own.loss(model.eval()(examples.inputs), examples.labels)), rel=1e-6)

    tests = {client: task.client_examples(client)[1] for client in range(2)}
    (line,) = lines(folder, "global")
    assert {int(client): own["loss"] for client, own in line["clients"].items()} == {
        client: at_once(test) for client, test in tests.items()
    }
    assert summary(folder)["test"]["loss"] == at_once(task.pool)
    if (folder / "heads.pt").exists():
        (line,), heads = lines(folder, "personalised"), torch.load(folder / "heads.pt", weights_only=True)
        assert {int(client): own["loss"] for client, own in line["clients"].items()} == {
            client: at_once(tests[client], head) for client, head in heads.items()
        }


@pytest.mark.parametrize("name", ["InPlace", "LabelsInPlace"])
def test_what_is_changed_in_place_is_the_same_at_the_next_evaluation(tmp_path, name):
    settings = {"task": own(name), "global_rounds": 3, **SMALL}
    last, every = (run_app(tmp_path / str(n), **settings, evaluate_every=n) for n in (0, 1))
    assert same_weights(last, every)
    for scope in ("test", "global"):
        assert summary(last)[scope] == summary(every)[scope]
    assert summary(every)["test"]["loss"] == pytest.approx(summary(every)["global"]["loss"]["mean"])


def test_one_output_gives_no_accuracy_by_the_largest_one(tmp_path):
    folder = run_app(tmp_path / "run", task=own("OneOutput"), **SMALL)
    assert "accuracy" not in summary(folder)["test"]
    assert summary(folder)["test"]["right"] > 0.8


@pytest.mark.parametrize(
    ("name", "tail"), [("OneOutput", "none"), ("Numbers", "head"), ("Several", "head"), ("CountsOfSeveral", "head")]
)
def test_whatever_labels_the_loss_takes_split_training_is_that_of_whole_models(tmp_path, name, tail):
    settings = {"task": own(name), "num_clients": 2, "batch_size": 10, "fine-tune.steps": 2}
    whole = run_app(tmp_path / "whole", algorithm="fedavg", **settings)
    split = run_app(tmp_path / "split", algorithm="sfl-v1", tail_layer=tail, **settings)
    assert summary(split)["failures"] == 0
    for key, values in weights(whole).items():
        assert torch.allclose(weights(split)[key], values, rtol=1e-9, atol=1e-12)
    assert summary(split)["test"]["loss"] == pytest.approx(summary(whole)["test"]["loss"])


def test_inputs_are_augmented_in_training_alone_and_alike_where_a_model_is_cut(tmp_path):
    settings = {"num_clients": 2, "batch_size": 10, "fine-tune.steps": 0}
    plain, unmoved, jittered, again = (
        run_app(tmp_path / str(place), task=own(name), algorithm="fedavg", **settings)
        for place, name in enumerate(["Points", "Unmoved", "Jittered", "Jittered"])
    )
    assert same_weights(plain, unmoved)
    assert same_weights(jittered, again)
    assert not same_weights(plain, jittered)
    begins = [json.loads((run / "round-0.json").read_text()) for run in (plain, jittered)]
    assert begins[0] == begins[1]
    split = run_app(tmp_path / "split", task=own("Jittered"), algorithm="sfl-v1", **settings)
    for key, values in weights(jittered).items():
        assert torch.allclose(weights(split)[key], values, rtol=1e-9, atol=1e-12)


def test_an_augmentation_that_fails_is_named_before_the_run(capsys):
    assert main([f"task={own('BadlyMoved')}"]) == 2
    said = capsys.readouterr().err
    assert "allowed is one whose augment(inputs, generator) gives what prepare() takes (IndexError: " in said


@pytest.mark.parametrize("algorithm", ["phsfl", "sfl-v2"])
def test_numbers_are_predicted_by_every_split_algorithm(tmp_path, algorithm):
    streams = {"split.transport": "stream"}
    folder = run_app(tmp_path / "run", task=own("Numbers"), algorithm=algorithm, tail_layer="head", **SMALL, **streams)
    assert summary(folder)["failures"] == 0
    assert summary(folder)["test"]["loss"] < json.loads((folder / "round-0.json").read_text())["test"]["loss"]


def test_a_figure_that_can_not_be_had_of_a_few_examples_is_tried_on_all(tmp_path):
    folder = run_app(tmp_path / "run", task=own("Rare"), **SMALL | {"num_clients": 40, "num_edges": 2})
    assert summary(folder)["test"]["balance"] == 1.0
    assert list(lines(folder, "global")[-1]["clients"]) == ["39"]  # the others' evaluations fail, with a line each


def test_weights_that_are_drawn_for_the_first_inputs_follow_the_seed(tmp_path):
    settings = {"task": own("Lazy"), "algorithm": "fedper", **SMALL}
    whole, again = (run_app(tmp_path / name, **settings, global_rounds=2) for name in ("whole", "again"))
    part = run_app(tmp_path / "part", **settings, global_rounds=1)
    assert main([f"resume={part}", "global-rounds=2"]) == 0
    assert same_weights(whole, again)
    assert same_weights(whole, part)


def test_on_a_device_no_client_begins_with_weights_of_its_own_that_are_not_drawn():
    config = parse_config({"task": own("Lazy"), "algorithm": "fedper", "seed": 77})
    with pytest.raises(UserError, match="allowed is one without lazy layers: clients of fedper begin with weights of"):
        ClientTasks(config)


def test_metrics_that_change_outputs_in_place_change_no_accuracy(tmp_path):
    plain, changed = (
        summary(run_app(tmp_path / name, task=own(name), **SMALL)) for name in ("Points", "InPlaceFigures")
    )
    assert plain["global"]["accuracy"] == changed["global"]["accuracy"]


@pytest.mark.parametrize("name", ["Caching", "InFours", "Lazy", "Named", "NumpyRate", "Singles"])
def test_a_task_that_is_unusual_is_not_refused(tmp_path, name):
    folder = run_app(tmp_path / "run", task=own(name), **SMALL, drop_last=True)
    assert summary(folder)["failures"] == 0
    assert list(lines(folder, "global")[-1]["clients"]) == ["0", "1", "2", "3"]


def test_outputs_of_several_tensors_are_judged_example_by_example(tmp_path):
    pair, plain = (run_app(tmp_path / name, task=own(name), **SMALL) for name in ("Pair", "Points"))
    for one, other in zip(lines(pair, "global"), lines(plain, "global"), strict=True):
        assert one["test"] == {"share": other["test"]["accuracy"], "loss": other["test"]["loss"]}
        assert one["loss"] == other["loss"]
        assert one["share"] == other["accuracy"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "Whole",
            "one whose model is an nn.Sequential of named blocks, the last one called head, for algorithm = 'phsfl'",
        ),
        ("Branches", "one whose blocks each take what the one before gives, a tensor (ValueError: a block gives a "),
        ("Values", "one whose labels are classes, integers of shape (N,) from 0, or (N, ...) with -100 where none "),
        ("Counts", "one whose labels are less than 3, by the outputs of its head, not 4, for algorithm = 'phsfl'"),
    ],
)
def test_what_cannot_be_split_says_so_where_a_split_algorithm_is_asked_for(tmp_path, capsys, name, message):
    assert main([f"task={own(name)}", "algorithm=phsfl"]) == 2
    assert capsys.readouterr().err.startswith(f"error: task = {own(name)!r}: allowed is {message}")
    assert run_app(tmp_path / "run", task=own(name), algorithm="fedavg", global_rounds=1, **SMALL)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"dataset": "cifar10"}, "dataset = 'cifar10': allowed is 'digits', the default, for task = "),
        ({"data.min-samples": 3}, "data.min-samples = 3: allowed is 10, the default, for task = "),
        ({"partition": "iid"}, "partition = 'iid': allowed is 'dirichlet', the default, for task = "),
        ({"partition": "own"}, "partition = 'own': allowed is another one for task = "),
        ({"algorithm": "top-popular"}, "algorithm = 'top-popular': allowed is another algorithm"),
    ],
)
def test_settings_of_other_data_are_refused_beside_it(settings, message):
    with pytest.raises(UserError) as caught:
        build_task(parse_config({"task": own("Points"), **settings}))
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"optimizer": "adam"}, "optimizer = 'adam': allowed is 'sgd' for task = "),
        ({"train.schedule": "cosine"}, "train.schedule = 'cosine': allowed is 'constant' for task = "),
        ({"split.server-momentum": 0.5}, "split.server-momentum = 0.5: allowed is 0.0 for task = "),
        ({"algorithm": "rawhfl"}, f"task = {own('Steered')!r}: allowed is one without an optimizer or a learning rate"),
    ],
)
def test_settings_that_its_own_optimizer_overrules_are_refused(settings, message):
    with pytest.raises(UserError) as caught:
        build_task(parse_config({"task": own("Steered"), **settings}))
    assert str(caught.value).startswith(message)


def test_one_object_serves_all_who_ask_with_the_same_settings():
    config = parse_config({"task": own("Points(spread=0.1)")})
    task = build_task(config)
    assert build_task(parse_config({"task": own("Points(spread=0.1)"), "algorithm": "fedavg"})) is task
    assert build_task(parse_config({"task": own("Points(spread=0.2)")})).own.spread == 0.2


def test_the_model_follows_the_seed_and_leaves_the_generators_alone():
    first, second = (build_task(parse_config({"task": own("Points"), "seed": seed})) for seed in (0, 1))
    torch.manual_seed(5)
    drawn = torch.rand(3)
    torch.manual_seed(5)
    a, b, c = first.new_model(), first.new_model(), second.new_model()
    assert torch.equal(torch.rand(3), drawn)
    assert torch.equal(a.head.weight, b.head.weight)
    assert not torch.equal(a.head.weight, c.head.weight)


def test_the_test_pool_is_that_of_all_clients_or_the_servers_own():
    task = build_task(parse_config({"task": own("Points"), "num-clients": 3}))
    tests = [task.new_client_task(task.new_model(), ClientNode(client)).test for client in range(3)]
    assert torch.equal(task.pool.labels, torch.cat([test.labels for test in tests]))
    assert torch.equal(task.pool.inputs[1], torch.cat([test.inputs[1] for test in tests]))
    assert len(build_task(parse_config({"task": own("Pooled")})).test_examples()) == 1


def test_other_data_have_another_fingerprint():
    def fingerprint(name, **settings):
        return build_task(parse_config({"task": own(name), **settings})).data_fingerprint()

    points = fingerprint("Points")
    assert fingerprint("Points(spread=0.5)") == points
    assert fingerprint("Points(spread=0.4)") != points != fingerprint("Points", seed=1)
    assert fingerprint("Pooled(spread=2.0)") == "points 2.0"


def test_a_client_counts_its_classes_where_labels_are_some():
    task, numbers = (build_task(parse_config({"task": own(name)})) for name in ("Points", "Values"))
    client = task.new_client_task(task.new_model(), ClientNode(0))
    assert client.class_counts == tuple((client.train.labels == label).sum() for label in range(3))
    assert numbers.new_client_task(numbers.new_model(), ClientNode(0)).class_counts == ()


def test_centralised_has_all_the_data(tmp_path):
    task = build_task(parse_config({"task": own("Points"), "num-clients": 3, "batches-per-epoch": 2}))
    pool = task.centralised_task()
    parts = [task.new_client_task(task.new_model(), ClientNode(client)).train for client in range(3)]
    assert torch.equal(pool.train.labels, torch.cat([part.labels for part in parts]))
    assert pool.training.batches_per_epoch == 6
    folder = run_app(tmp_path / "run", task=own("Points"), algorithm="centralised", global_rounds=5, **SMALL)
    assert summary(folder)["test"]["accuracy"] > 0.7


@pytest.mark.parametrize("name", ["Points", "Steered"])
@pytest.mark.parametrize("algorithm", [{"algorithm": "sfl-v1", "cut_layer": "1,2"}, {"algorithm": "hsfl"}])
def test_split_is_unsplit_with_its_own_loss_optimizer_and_learning_rates(tmp_path, name, algorithm):
    whole = "h-fedavg" if algorithm["algorithm"] == "hsfl" else "fedavg"
    split = run_app(tmp_path / "split", task=own(name), **algorithm, **SMALL)
    unsplit = run_app(tmp_path / "whole", task=own(name), algorithm=whole, **SMALL)
    for key, values in weights(unsplit).items():
        torch.testing.assert_close(weights(split)[key], values, rtol=0, atol=1e-12)
    assert summary(split)["test"] == pytest.approx(summary(unsplit)["test"], abs=1e-9)


def test_one_server_for_all_clients_follows_the_learning_rates(tmp_path):
    """With one client SFL-V2 is local training: the server's optimizer lives on, its momentum is 0.0 here."""
    one = SMALL | {"num_clients": 1}
    split = run_app(tmp_path / "split", task=own("Scheduled"), algorithm="sfl-v2", **one)
    unsplit = run_app(tmp_path / "whole", task=own("Scheduled"), algorithm="fedavg", **one)
    for key, values in weights(unsplit).items():
        torch.testing.assert_close(weights(split)[key], values, rtol=0, atol=1e-12)


@pytest.mark.usefixtures("with_blank_pictures")
def test_its_learning_rates_and_metrics_are_used_and_reported(tmp_path):
    folder = run_app(tmp_path / "run", task=own("Steered"), report_plots=True, **SMALL)
    assert not same_weights(folder, run_app(tmp_path / "plain", task=own("Points"), **SMALL))
    final, (_, line) = summary(folder), lines(folder, "global")
    assert final["dataset"] == "Steered"
    assert list(final["global"]) == ["accuracy", "confidence", "loss"]
    assert 1 / 3 < final["global"]["confidence"]["mean"] == line["confidence"]["mean"] <= 1
    assert set(line["test"]) == {"accuracy", "confidence", "loss"}
    header = (folder / "clients.csv").read_text().splitlines()[0]
    assert "classes,accuracy,confidence,loss,times_left_out" in header
    assert {path.name for path in folder.glob("*.png")} == {
        *("rounds.png", "clients.png", "bytes.png", "partition.png", "seconds.png")
    }


@pytest.mark.usefixtures("with_png")
@pytest.mark.parametrize(
    "settings", [{"algorithm": "h-fedavg"}, {"algorithm": "phsfl", "fine_tune_rate": 0.3}], ids=str
)
def test_a_figure_that_one_client_has_not_costs_it_no_other(tmp_path, settings):
    folder = run_app(tmp_path / "run", task=own("Recalls"), report_plots=True, **SMALL, num_edges=2, **settings)
    for line in [*lines(folder, "global"), *lines(folder, "personalised")]:
        clients = line["clients"]
        assert list(clients) == ["0", "1", "2", "3"]
        assert line["failures"] in (0, [])
        for name in ("accuracy", "loss", "recall-0", "recall-1", "spread"):
            there = [own[name] for own in clients.values() if name in own]
            assert len(there) == {"accuracy": 4, "loss": 4, "spread": 2}.get(name, len(there))
            assert line[name]["mean"] == pytest.approx(sum(there) / len(there), rel=1e-12)
    header, *rows = (folder / "clients.csv").read_text().splitlines()
    place = header.split(",").index("spread")
    assert [row.split(",")[place] for row in rows] == ["1.0", "", "1.0", ""]
    assert (folder / "clients.png").exists()


def test_its_metrics_are_reported_of_fine_tuned_heads_too(tmp_path):
    settings = {"task": own("Steered"), "algorithm": "phsfl", "data_validation_share": 0.2, "fine_tune_rate": 0.3}
    folder = run_app(tmp_path / "heads-here", **SMALL | settings)
    final, (line,) = summary(folder), lines(folder, "personalised")
    assert list(final["personalised"]) == list(final["global"]) == ["accuracy", "confidence", "loss"]
    assert list(final["personalised_validation"]) == ["accuracy", "confidence", "loss", "clients"]
    task, model = build_task(parse_config({"task": own("Steered")})).own, Steered().model()
    model.load_state_dict(weights(folder))
    means = []
    for client, head in torch.load(folder / "heads.pt", weights_only=True).items():
        model.load_state_dict(head, strict=False)
        test = task.client_data(client, SMALL["num_clients"], 0)[1]
        with torch.inference_mode():
            means.append(float(task.metrics(model(test.inputs), test.labels)["confidence"]))
        assert line["clients"][str(client)]["confidence"] == pytest.approx(means[-1], rel=1e-9)
    assert len(means) == SMALL["num_clients"]
    assert final["personalised"]["confidence"]["mean"] == pytest.approx(sum(means) / len(means), rel=1e-9)
    *_, accuracy, confidence, loss = rows_of_clients(folder)[0]
    assert (accuracy, confidence, loss) == ("personalised_accuracy", "personalised_confidence", "personalised_loss")
    # Heads that stay with the clients tell the same.
    there = run_app(tmp_path / "heads-there", tail_layer=2, **SMALL | settings)
    for client, figures in lines(there, "personalised")[0]["clients"].items():
        assert figures["confidence"] == pytest.approx(line["clients"][client]["confidence"], rel=1e-6)


@pytest.mark.parametrize("algorithm", ["apfl", "ditto"])
def test_its_metrics_are_reported_of_clients_own_models_too(tmp_path, algorithm):
    folder = run_app(tmp_path / "run", task=own("Recalls"), algorithm=algorithm, **SMALL)
    final, clients = summary(folder), lines(folder, "global")[-1]["clients"]
    assert list(final["personal"]) == list(final["global"])
    for name in ("accuracy", "recall-0", "recall-1", "spread", "loss"):
        told = [figures[f"personal-{name}"] for figures in clients.values() if name in figures]
        assert final["personal"][name]["mean"] == pytest.approx(sum(told) / len(told), rel=1e-12)
        column = [row[f"personal_{name}"] for row in rows_of_clients(folder)]
        assert [float(value) for value in column if value] == told


@pytest.mark.usefixtures("with_png")
def test_all_is_drawn_of_a_task_whose_labels_are_no_classes(tmp_path):
    settings = {"task": own("Values"), "selected_per_edge": 1, "report_plots": True, **SMALL}
    folder = run_app(tmp_path / "planned", algorithm="h-fedavg", selection="resource-aware", **settings)
    assert list(summary(folder)["global"]) == ["loss"]
    assert {"rounds.png", "clients.png", "costs.png", "energy.png"} <= {path.name for path in folder.glob("*.png")}


def test_heads_are_drawn_without_an_accuracy(tmp_path):
    folder = run_app(tmp_path / "heads", task=own("Points"), algorithm="phsfl", **SMALL)
    every = ResultsFolder(folder).read_metrics()
    for line in every:
        line.pop("accuracy", None)
        line.get("test", {}).pop("accuracy", None)
        for figures in line.get("clients", {}).values():
            figures.pop("accuracy")
    assert tmp_path / "personalised.png" in draw_plots(tmp_path, "no accuracy", every)


@pytest.mark.parametrize(
    ("settings", "picture"),
    [
        ({}, "rounds.png"),
        ({"selection": "resource-aware", "selected_per_edge": 1}, "costs.png"),
        ({"async_mode": "fedbuff", "num_edges": 2}, "async.png"),
    ],
)
@pytest.mark.usefixtures("with_blank_pictures")
def test_a_figure_that_a_round_has_not_is_a_gap_in_its_curve(tmp_path, settings, picture):
    folder = run_app(tmp_path / "run", task=own("Points"), algorithm="h-fedavg", **SMALL, **settings)
    first, *others = ResultsFolder(folder).read_all_lines()
    for line in [first, *(other for other in others if other["round"] == first["round"])]:
        line.pop("accuracy", None)
        line.get("test", {}).pop("accuracy", None)
        for figures in line.get("clients", {}).values():
            figures.pop("accuracy", None)
    draw_run("gaps", ResultsFolder(folder), [first, *others])
    assert (folder / picture).exists()


def test_plans_are_made_for_it(tmp_path):
    settings = {"task": own("Points"), "algorithm": "phsfl", "cut_layer": "best", "selected_per_edge": 1, **SMALL}
    folder = run_app(tmp_path / "run", selection="resource-aware", **settings)
    assert summary(folder)["energy_joules"]["total"] > 0
    assert summary(folder)["failures"] == 0


def test_a_run_is_resumed_to_the_same_bits_and_refused_on_other_data(tmp_path, capsys):
    settings = {"task": own("Steered"), "algorithm": "phsfl", **SMALL}
    whole = run_app(tmp_path / "whole", **settings, global_rounds=3)
    folder = run_app(tmp_path / "run", **settings, global_rounds=2)
    assert main([f"resume={folder}", "global-rounds=3"]) == 0
    assert same_weights(whole, folder)
    capsys.readouterr()
    assert main([f"resume={folder}", f"task={own('Points')}", "global-rounds=4"]) == 2
    assert (
        f"task = {own('Points')!r}: allowed is {own('Steered')!r}, as in the run to resume" in capsys.readouterr().err
    )


def test_reports_made_again_have_the_same_names(tmp_path):
    folder = run_app(tmp_path / "run", task=own("Points(spread=0.4)"), algorithm="fedavg", **SMALL)
    before = summary(folder)
    assert before["dataset"] == "Points"
    report_again(folder)
    assert summary(folder) == before
