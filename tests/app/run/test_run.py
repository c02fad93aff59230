"""Whole runs on the in-process engine."""

import csv
import json
import random
from errno import ENOSPC
from statistics import fmean, pstdev

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord
from flwr.serverapp.strategy import FedAvg
from torch.nn.functional import cross_entropy

from espalier.app.client import app as client_app
from espalier.app.command_line import main
from espalier.app.comparison.runs import is_over
from espalier.app.config.parse import parse_config
from espalier.app.reports import plots
from espalier.app.reports.final import report_again
from espalier.app.reports.progress import LogProgress
from espalier.app.run.run import run
from espalier.app.tasks.node import ClientNode
from espalier.app.wiring.federation import gather_clients
from espalier.app.wiring.task_of_run import build_task
from espalier.strategies.views import MemberGrid
from tests.app.assembling import config_of, engine_of
from tests.app.runs import ROOT, SHORT, lines, run_app, same_weights, summary, weights

FILES = [
    "bytes.pdf",
    "bytes.png",
    "clients.csv",
    "clients.pdf",
    "clients.png",
    "config.json",
    "data.json",
    "made-by.json",
    "metrics.jsonl",
    "model.pt",
    "partition.csv",
    "partition.pdf",
    "partition.png",
]


@pytest.mark.usefixtures("with_blank_pictures")
def test_a_run_leaves_every_report_and_its_figures_agree(tmp_path, capsys):
    folder = run_app(tmp_path / "run", global_rounds=3, report_plots=True)
    assert sorted(p.name for p in folder.iterdir()) == [
        *FILES,
        "round-0.json",
        "rounds.pdf",
        "rounds.png",
        "seconds.jsonl",
        "seconds.pdf",
        "seconds.png",
        "state.npz",
        "summary.json",
    ]
    printed = capsys.readouterr().out.strip().splitlines()
    assert printed[-1] == f"results: {folder}"

    final, rounds = summary(folder), lines(folder, "global")
    assert [line["round"] for line in rounds] == [1, 2, 3]
    assert [(line["round"], line["edge"]) for line in lines(folder, "edge")] == [
        (t, f"edge-{b}") for t in (1, 2, 3) for b in (0, 1)
    ]
    accuracies = [client["accuracy"] for client in rounds[-1]["clients"].values()]
    assert len(accuracies) == 8
    assert final["global"]["accuracy"] == {
        "mean": fmean(accuracies),
        "std": pstdev(accuracies),
        "min": min(accuracies),
        "max": max(accuracies),
    }
    assert (final["algorithm"], final["seed"], final["rounds"], final["failures"]) == ("h-fedavg", 0, 3, 0)
    with (folder / "clients.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [float(row["accuracy"]) for row in rows] == accuracies
    assert [row["edge"] for row in rows] == ["edge-0"] * 4 + ["edge-1"] * 4
    assert sum(int(row["train_examples"]) for row in rows) == 1437


@pytest.mark.usefixtures("with_png")
def test_without_plots_a_run_has_the_same_figures_and_they_can_be_drawn_later(tmp_path, request):
    with_plots = run_app(tmp_path / "with", num_clients=4, report_plots=True)
    without = run_app(tmp_path / "without", num_clients=4)
    assert not list(without.glob("*.png"))
    assert figures_of(summary(without)) == figures_of(summary(with_plots))
    report_again(without)
    plots = {"rounds.png", "clients.png", "bytes.png", "partition.png"}
    assert {path.name for path in without.glob("*.png")} == plots | {"seconds.png"}
    for plot in (without / name for name in plots):
        assert plot.read_bytes() == (with_plots / plot.name).read_bytes()
    plot.unlink()
    request.getfixturevalue("with_blank_pictures")
    assert main([f"resume={without}", "report.plots=true"]) == 0
    assert plot.exists()


def figures_of(final):
    return {key: value for key, value in final.items() if key not in ("seconds", "wall_seconds")}


@pytest.mark.usefixtures("with_blank_pictures")
def test_a_run_whose_plots_could_not_be_written_has_its_figures(tmp_path, capsys):
    def on_a_full_disk(*arguments):
        raise OSError(ENOSPC, "No space left on device")

    quick = ["algorithm=fedavg", "num-clients=4", "global-rounds=1", "batches-per-epoch=1"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plots, "draw_plots", on_a_full_disk)
        assert main([*quick, f"output-dir={tmp_path / 'run'}"]) == 2
        assert "No space left on device" in capsys.readouterr().err
        assert is_over(tmp_path / "run")
        before = (tmp_path / "run/summary.json").read_text()
        (tmp_path / "run/summary.json").unlink()
        with pytest.raises(OSError, match="No space left"):
            report_again(tmp_path / "run")
        assert (tmp_path / "run/summary.json").read_text() == before
    assert main([f"resume={tmp_path / 'run'}"]) == 0
    assert (tmp_path / "run/rounds.png").exists()


def test_the_reported_accuracy_is_that_of_the_saved_model(tmp_path):
    folder = run_app(tmp_path / "run")
    config = parse_config(json.loads((folder / "config.json").read_text()))
    task = build_task(config)
    data, model = task.data, task.new_model()
    model.load_state_dict(weights(folder))
    pixels = torch.tensor(data.test.images.astype(np.float32)).permute(0, 3, 1, 2) / 255
    train = data.train.images / 255
    outputs = model.eval()((pixels - float(train.mean())) / float(train.std())).detach()
    labels = torch.tensor(data.test.labels)
    assert summary(folder)["test"]["accuracy"] == pytest.approx(float((outputs.argmax(1) == labels).float().mean()))
    assert summary(folder)["test"]["loss"] == pytest.approx(float(cross_entropy(outputs, labels)), rel=1e-4)
    own = task.client_indices[2].test
    expected = float((outputs[own].argmax(1) == labels[own]).float().mean())
    assert lines(folder, "global")[-1]["clients"]["2"]["accuracy"] == pytest.approx(expected)


def test_bytes_are_those_of_the_models_that_travel(tmp_path):
    one = ArrayRecord(
        {k: Array(v.numpy()) for k, v in build_task(parse_config({})).new_model().state_dict().items()}
    ).count_bytes()
    folder = run_app(tmp_path / "two", global_rounds=2, edge_rounds=3, num_edges=4)
    kinds = summary(folder)["bytes_by_kind"]
    for direction in ("uplink", "downlink"):
        assert kinds["edge"][direction]["model"] == 2 * 3 * 8 * one
        assert kinds["cloud"][direction]["model"] == 2 * 4 * one
        rest = {k: v for k, v in kinds["edge"][direction].items() if k != "evaluation"}
        assert summary(folder)["bytes"][direction]["edge"] == sum(rest.values())
    flat = summary(run_app(tmp_path / "flat", algorithm="fedavg", global_rounds=2))
    assert list(flat["bytes_by_kind"]) == ["cloud"]
    assert flat["bytes_by_kind"]["cloud"]["uplink"]["model"] == 2 * 8 * one


def test_flat_and_one_edge_are_flowers_own_fedavg_to_the_bit(tmp_path, monkeypatch):
    flat = run_app(tmp_path / "flat", algorithm="fedavg", global_rounds=3)
    nested = run_app(tmp_path / "nested", algorithm="h-fedavg", num_edges=1, edge_rounds=1, global_rounds=3)
    assert same_weights(flat, nested)
    assert summary(flat)["global"] == summary(nested)["global"]
    # Flower averages in the order in which it happened to draw the nodes: let that be client order.
    monkeypatch.setattr(random, "sample", lambda population, k: population[:k])
    config = config_of(**{**SHORT, "global-rounds": 3}, engine="in-process", algorithm="fedavg")
    grid = engine_of(config).grid
    clients = MemberGrid(grid, [profile.node_id for profile in gather_clients(grid, 8, config.deploy)])
    start = ArrayRecord(build_task(config).new_model().state_dict())
    expected = FedAvg().start(clients, start, num_rounds=3).arrays.to_torch_state_dict()
    assert all(torch.equal(tensor, expected[name]) for name, tensor in weights(flat).items())


def test_the_seed_decides_everything(tmp_path):
    first = run_app(tmp_path / "1", participation=0.5, seed=1)
    torch.manual_seed(99)
    assert same_weights(first, run_app(tmp_path / "2", participation=0.5, seed=1))
    assert not same_weights(first, run_app(tmp_path / "3", participation=0.5, seed=2))
    assert lines(first, "edge")[0]["participants"] == lines(tmp_path / "2", "edge")[0]["participants"]
    assert all(len(clients) == 2 for line in lines(first, "edge") for clients in line["participants"])


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    return run_app(tmp_path_factory.mktemp("plain") / "run")


@pytest.mark.parametrize(
    ("cloud", "edge"),
    [
        ("FedAdam(eta=0.05)", "FedProx(proximal_mu=0.1)"),
        ("FedMedian", "Krum"),
        ("FedAvgM", "QFedAvg(client_learning_rate=0.1)"),
    ],
)
def test_any_strategies_nest(tmp_path, plain, cloud, edge):
    folder = run_app(tmp_path / "run", cloud_strategy=cloud, edge_strategy=edge)
    assert not same_weights(folder, plain)
    assert summary(folder)["failures"] == 0


def test_evaluation_can_be_rare(tmp_path):
    folder = run_app(tmp_path / "run", global_rounds=3, evaluate_every=0)
    assert ["clients" in line for line in lines(folder, "global")] == [False, False, True]
    assert same_weights(folder, run_app(tmp_path / "often", global_rounds=3))


def faulty(faults):
    """The app's ClientApp, in which client i breaks its training reply as `faults[i]` does."""

    def answer(message, context):
        reply = client_app(message, context)
        client = context.node_config["partition-id"]
        if message.metadata.message_type == "train" and client in faults:
            faults[client](reply.content["arrays"])
        return reply

    return answer


def spoil(arrays):
    arrays["head.bias"] = Array(np.full(10, np.nan, np.float32))


def reshape(arrays):
    arrays["head.bias"] = Array(np.zeros(9, np.float32))


def drop(arrays):
    del arrays["head.bias"]


def die(arrays):
    raise RuntimeError("out of battery")


def run_with(faults, folder):
    config = config_of(**SHORT, output_dir=str(folder), report_plots=False, engine="in-process")
    return run(config, engine_of(config, client_app=faulty(faults)), LogProgress(), folder)


def test_bad_clients_are_counted_and_the_run_goes_on(tmp_path, caplog):
    folder = run_with({0: spoil, 2: reshape, 5: drop, 7: die}, tmp_path / "run")
    assert summary(folder)["failures"] == summary(folder)["replies_left_out"] == 4 * 2 * 2
    reasons = {f["client"]: f["reason"] for line in lines(folder, "edge") for f in line["failures"]}
    assert reasons == {
        0: "array 'head.bias' holds NaN or Inf",
        2: "array 'head.bias' has shape (9,), expected (10,)",
        5: "array 'head.bias' is missing",
        7: "RuntimeError: out of battery",
    }
    assert [line["participants"] for line in lines(folder, "edge")] == [[[1, 3]] * 2, [[4, 6]] * 2] * 2
    assert "client 7 of edge-1 left out: RuntimeError: out of battery" in caplog.text
    with (folder / "clients.csv").open() as file:
        assert [int(row["times_left_out"]) for row in csv.DictReader(file)] == [4, 0, 4, 0, 0, 4, 0, 4]


def test_the_cloud_goes_on_without_an_edge_that_lost_all_its_clients(tmp_path):
    folder = run_with({4: die, 5: die, 6: spoil, 7: spoil}, tmp_path / "run")
    assert [line["edges_left_out"] for line in lines(folder, "global")] == [["edge-1"]] * 2
    assert summary(folder)["test"]["accuracy"] > 0.1


def test_a_model_can_be_used_elsewhere_as_the_docs_say(tmp_path):
    folder = run_app(tmp_path / "run", algorithm="phsfl", global_rounds=1, fine_tune_steps=1)
    page = (ROOT / "docs/use-the-model.md").read_text(encoding="utf-8")
    code = page.split("```python\n")[1].split("```")[0]
    found = {}
    exec(code.replace("results/my-run", str(folder)), found)
    test = build_task(config_of(engine="in-process")).test_examples()
    names = [found["about"]["classes"][label] for label in test.labels.tolist()]
    right = [a == b for a, b in zip(found["classify"](test.inputs), names, strict=True)]
    assert fmean(right) == pytest.approx(summary(folder)["test"]["accuracy"])

    heads = torch.load(folder / "heads.pt")
    found["model"].load_state_dict(torch.load(folder / "model.pt") | heads[3])
    own = build_task(config_of(engine="in-process")).new_client_task(found["model"], ClientNode(3)).test
    names = [found["about"]["classes"][label] for label in own.labels.tolist()]
    right = [a == b for a, b in zip(found["classify"](own.inputs), names, strict=True)]
    (line,) = lines(folder, "personalised")
    assert fmean(right) == pytest.approx(line["clients"]["3"]["accuracy"])
