"""Examples that clients hold back from training, and the best round by them."""

import json

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord

from espalier.app.command_line import main
from espalier.app.config.parse import parse_config
from espalier.app.ground.checkpoint import load_state, save_state
from espalier.app.ground.errors import UserError
from espalier.app.reports.best import best_line
from espalier.app.reports.final import report_again
from espalier.app.reports.observers import BestRound
from espalier.app.tasks.node import ClientNode
from espalier.app.wiring.task_of_run import build_task
from espalier.clients.whole.evaluation import figures_on
from tests.app.runs import lines, run_app, same_weights, summary, weights

SMALL = {
    "num_clients": 4,
    "num_edges": 2,
    "edge_rounds": 1,
    "local_epochs": 1,
    "batches_per_epoch": 2,
    "learning_rate": 0.2,  # so large that the last round is not the best
    "seed": 1,
    "alpha": 0.1,
    "validation_share": 0.2,
}


def best_weights(folder):
    return torch.load(folder / "best-model.pt", weights_only=True)


def equal(left, right):
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return run_app(tmp_path_factory.mktemp("best") / "whole", global_rounds=5, algorithm="hsfl", **SMALL)


def test_the_best_round_is_the_one_whose_held_back_examples_are_classified_best(whole, tmp_path):
    rounds = lines(whole, "global")
    means = [line["validation"]["accuracy"]["mean"] for line in rounds]
    best = summary(whole)["best"]
    assert best["round"] == 1 + int(np.argmax(means)) < 5
    line = rounds[best["round"] - 1]
    assert best["validation"] == line["validation"]
    assert best["test"] == line["test"]
    assert best["global"] == {key: line[key] for key in ("accuracy", "loss")}
    stopped = run_app(tmp_path / "stopped", global_rounds=best["round"], algorithm="hsfl", **SMALL)
    assert equal(best_weights(whole), weights(stopped))
    assert not same_weights(whole, stopped)
    report_again(whole)
    assert summary(whole)["best"] == best


def test_validation_figures_are_those_of_the_model_on_what_is_held_back(whole):
    config = parse_config(json.loads((whole / "config.json").read_text()))
    task = build_task(config)
    model = task.new_model()
    model.load_state_dict(best_weights(whole))
    found = []
    for client in range(4):
        own = task.new_client_task(model, ClientNode(client))
        found.append(figures_on(model, own.validation, own.prepare, torch.device("cpu"), own.objective)["accuracy"])
    reported = lines(whole, "global")[summary(whole)["best"]["round"] - 1]
    # One batch on the whole model or two through the cut: the same classes.
    assert [reported["clients"][str(i)]["validation-accuracy"] for i in range(4)] == found
    assert reported["validation"]["accuracy"]["mean"] == pytest.approx(np.mean(found), abs=1e-12)
    assert reported["validation"]["clients"] == 4


@pytest.mark.parametrize("through_cut", [{}, {"tail_layer": "head"}])
def test_heads_of_clients_are_judged_on_what_is_held_back_too(tmp_path, through_cut):
    folder = run_app(tmp_path / "run", global_rounds=1, algorithm="phsfl", **SMALL, **through_cut)
    (line,) = lines(folder, "personalised")
    own = [client["validation-accuracy"] for client in line["clients"].values()]
    assert line["validation"]["accuracy"]["mean"] == pytest.approx(np.mean(own), abs=1e-12)
    assert summary(folder)["personalised_validation"] == line["validation"]


def test_of_rounds_with_equal_accuracies_the_one_with_the_lowest_loss_is_best():
    def line(number, accuracy, loss):
        figures = {"accuracy": {"mean": accuracy}, "loss": {"mean": loss}}
        return {"round": number, "scope": "global", "validation": figures}

    rounds = [line(1, 0.9, 0.7), line(2, 0.95, 0.6), line(3, 0.95, 0.5), line(4, 0.95, 0.5), line(5, 0.9, 0.1)]
    assert best_line(rounds)["round"] == 3
    without_classes = [{**one, "validation": {"loss": one["validation"]["loss"]}} for one in rounds]
    assert best_line(without_classes)["round"] == 5


def test_a_best_round_of_an_earlier_edition_gives_way_to_none_that_is_only_equal():
    arrays = ArrayRecord({"w": Array(np.zeros(2, np.float32))})
    best = BestRound(arrays)
    best.load_state_dict({"round": 2, "score": 0.95, "arrays": arrays})
    assert (best.number, best.score) == (2, (0.95, np.inf))
    again = BestRound(arrays)
    again.load_state_dict(best.state_dict())
    assert again.score == best.score


def test_a_resumed_run_has_the_same_best_model(whole, tmp_path):
    best = summary(whole)["best"]["round"]
    stopped = run_app(tmp_path / "stopped", global_rounds=best, algorithm="hsfl", **SMALL)
    assert load_state(stopped / "state.npz")["best"]["round"] == best
    (stopped / "best-model.pt").unlink()
    assert main([f"resume={stopped}", "global-rounds=5"]) == 0
    assert equal(best_weights(stopped), best_weights(whole))
    assert summary(stopped)["best"] == summary(whole)["best"]
    said = [[line["validation"] for line in lines(folder, "global")] for folder in (stopped, whole)]
    assert said[0] == said[1]


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (lambda state: state["best"]["arrays"].popitem(), "best: array "),
        (lambda state: state.pop("best"), "best: it is missing, and metrics.jsonl has a best round"),
    ],
    ids=["another form", "missing"],
)
def test_another_best_model_is_no_state_of_the_run(tmp_path, capsys, spoil, why):
    folder = run_app(tmp_path / "run", global_rounds=1, **SMALL)
    written = (folder / "metrics.jsonl").read_text()
    state = load_state(folder / "state.npz")
    spoil(state)
    save_state(folder / "state.npz", state)
    assert main([f"resume={folder}", "global-rounds=2"]) == 2
    error = capsys.readouterr().err
    assert "state.npz: " in error
    assert why in error
    assert error.count("\n") == 1
    assert (folder / "metrics.jsonl").read_text() == written


def test_what_is_held_back_is_trained_on_by_nobody():
    held_back = build_task(parse_config({"data.validation-share": 0.3, "num-clients": 5}))
    everything = build_task(parse_config({"num-clients": 5}))
    total = 0
    for client in range(5):
        own = held_back.new_client_task(held_back.new_model(), ClientNode(client))
        whole = everything.new_client_task(everything.new_model(), ClientNode(client))
        assert len(own.validation) == int(0.3 * len(whole.train) + 0.5)
        together = torch.cat([own.train.inputs, own.validation.inputs]).flatten(1)
        assert torch.equal(together.unique(dim=0), whole.train.inputs.flatten(1).unique(dim=0))
        assert len(together) == len(whole.train)
        assert sum(own.class_counts) == len(own.train)
        assert torch.equal(own.test.inputs, whole.test.inputs)
        assert whole.validation is None
        total += len(own.train)
    assert len(held_back.centralised_task().train) == total


def test_a_client_of_few_examples_holds_none_back_and_is_left_out_of_the_mean(tmp_path):
    few = {"task": "tests.app.own_tasks:Few", "algorithm": "fedavg", "num_clients": 3, "validation_share": 0.4}
    folder = run_app(tmp_path / "run", global_rounds=1, **few)
    (line,) = lines(folder, "global")
    counts = [line["clients"][str(i)]["num-validation-examples"] for i in range(3)]
    assert counts == [0, 2, 4]
    assert line["failures"] == 0
    own = [line["clients"][str(i)]["validation-accuracy"] for i in (1, 2)]
    assert line["validation"]["clients"] == 2
    assert line["validation"]["accuracy"]["mean"] == pytest.approx(np.mean(own), abs=1e-12)


def test_without_it_nothing_is_said_of_it(tmp_path):
    folder = run_app(tmp_path / "run", global_rounds=1, **{**SMALL, "validation_share": 0.0})
    text = (folder / "metrics.jsonl").read_text()
    assert "validation" not in text
    assert "best" not in summary(folder)
    assert not (folder / "best-model.pt").exists()


@pytest.mark.parametrize("algorithm", ["centralised", "sl", "fedavg"])
def test_flat_algorithms_have_a_best_round_too(tmp_path, algorithm):
    flat = {key: value for key, value in SMALL.items() if key not in ("num_edges", "edge_rounds")}
    folder = run_app(tmp_path / algorithm, global_rounds=2, algorithm=algorithm, **flat)
    assert summary(folder)["best"]["round"] in (1, 2)
    assert (folder / "best-model.pt").exists()


def test_video_caching_can_hold_nothing_back():
    with pytest.raises(UserError) as caught:
        parse_config({"dataset": "video-caching", "data.validation-share": 0.1})
    assert str(caught.value) == (
        "data.validation-share = 0.1: allowed is 0.0 for dataset = 'video-caching', whose clients get more data from "
        "round to round"
    )
