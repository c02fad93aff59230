"""The state of a run: those of earlier editions are resumed, and what is no state of the run is refused in one line.

``states/1`` is what this command, and a removal of all but ``config.json``, ``metrics.jsonl`` and ``state.npz``, made:

    python -m espalier task=tests.app.own_tasks:Points num-clients=4 num-edges=2 local-epochs=1 batches-per-epoch=1 \
        optimizer=adam learning-rate=0.01 selection=resource-aware "cloud-strategy=FedAdam(eta=0.05)" \
        "edge-strategy=FedAvgM(server_momentum=0.5, server_learning_rate=0.9)" global-rounds=2 \
        output-dir=tests/app/states/1
"""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord

from espalier.app.command_line import main
from espalier.app.ground.checkpoint import load_state, save_state
from espalier.app.reports.run_state import RunState
from espalier.app.run import checked_run
from tests.app.runs import lines, run_app, same_weights, summary, weights

STATES = Path(__file__).parent / "states"


@pytest.fixture(autouse=True)
def _no_plots(monkeypatch):
    """Leave out the plots, which take most of the time of so small a run."""
    monkeypatch.setattr(checked_run, "draw_run", lambda *arguments: None)


@pytest.fixture
def folder(tmp_path):
    """Return a results folder of this edition with a round that is over."""
    return shutil.copytree(STATES / "1", tmp_path / "run")


@pytest.mark.parametrize("edition", sorted(path.name for path in STATES.iterdir()))
def test_a_run_of_an_earlier_edition_goes_on_to_the_same_bits(edition, tmp_path):
    folder = shutil.copytree(STATES / edition, tmp_path / edition)
    assert main([f"resume={folder}"]) == 0
    saved = load_state(STATES / edition / "state.npz")["arrays"].to_torch_state_dict()
    assert all(torch.equal(saved[name], tensor) for name, tensor in weights(folder).items())

    assert main([f"resume={folder}", "global-rounds=4"]) == 0
    values = json.loads((STATES / edition / "config.json").read_text())
    whole = tmp_path / "whole"
    settings = values | {"output-dir": str(whole), "global-rounds": 2, "guard.mode": "off"}
    assert main([f"{key}={json.dumps(value)}" for key, value in settings.items()]) == 0
    has_same_arithmetic = all(torch.equal(saved[name], tensor) for name, tensor in weights(whole).items())
    assert main([f"resume={whole}", "global-rounds=4"]) == 0
    assert same_weights(folder, whole) or not has_same_arithmetic
    for name, tensor in weights(whole).items():  # a processor of another kind adds up in another order
        torch.testing.assert_close(weights(folder)[name], tensor, rtol=1e-9, atol=1e-9)
    assert summary(folder)["energy_joules"] == pytest.approx(summary(whole)["energy_joules"])
    assert [line["round"] for line in lines(folder, "global")] == [1, 2, 3, 4]


def test_a_run_from_before_there_were_guards_goes_on_without(folder, capsys):
    assert main([f"resume={folder}", "global-rounds=3", "guard.mode=leave-out"]) == 2
    assert "guard.mode = 'leave-out': allowed is 'off', as in the run to resume" in capsys.readouterr().err
    assert main([f"resume={folder}", "global-rounds=3"]) == 0
    assert json.loads((folder / "config.json").read_text())["guard.mode"] == "off"


def test_a_state_without_a_version_is_of_the_first(folder):
    state = load_state(folder / "state.npz")
    assert state.pop("version") == 1
    save_state(folder / "state.npz", state)
    assert main([f"resume={folder}"]) == 0


def test_a_run_whose_examples_flower_shared_out_unshuffled_does_not_go_on_with_others(tmp_path, capsys):
    pytest.importorskip("flwr_datasets")
    partition = "flwr:IidPartitioner"
    folder = run_app(tmp_path / "run", algorithm="fedavg", partition=partition, num_clients=4, global_rounds=1)
    state = load_state(folder / "state.npz")
    save_state(folder / "state.npz", {**state, "data": state["data"].removesuffix(" shuffled")})
    assert main([f"resume={folder}", "global-rounds=2"]) == 2
    assert f"partition = '{partition}': allowed is that of a run of this edition" in capsys.readouterr().err
    save_state(folder / "state.npz", state)
    assert main([f"resume={folder}", "global-rounds=2"]) == 0


def of(state, *path):
    """Return what holds the last part of a path."""
    for part in path[:-1]:
        state = state[part]
    return state


WRONG_SHAPE = np.zeros((3, 7, 2))
OF_ADAM = ("strategies", "cloud", "m_t")
WRONG = [
    (("version",), 2, "version: Input should be 1"),
    (("round",), 10**9, "metrics.jsonl: lacks rounds"),
    (("round",), 10**400, "metrics.jsonl: lacks rounds"),
    (("round",), 0, "round: Input should be greater than 0"),
    (("round",), "2", "round: Input should be a valid integer"),
    (("round",), True, "round: Input should be a valid integer"),
    (("data",), "other", "task = 'tests.app.own_tasks:Points'"),
    (("edges",), [1], "edges: Input should be a valid dictionary"),
    (("edges",), {"edge-0": [0, 1]}, "edges: it is of other clients"),
    (("edges", "edge-0"), [0, "x"], "edges.edge-0.1: Input should be a valid integer"),
    (("wall_seconds",), float("nan"), "wall_seconds: Input should be a finite number"),
    (("wall_seconds",), -1.0, "wall_seconds: Input should be greater than or equal to 0"),
    (("arrays",), {}, "arrays: Input should be an instance of ArrayRecord"),
    (("arrays",), ArrayRecord(), "arrays: array 'body.bias' is missing"),
    (("arrays", "body.bias"), Array(WRONG_SHAPE), "arrays: array 'body.bias' has shape (3, 7, 2), expected (8,)"),
    (("arrays", "body.bias"), Array(np.full(8, np.inf)), "arrays: array 'body.bias' holds NaN or Inf"),
    (("arrays", "body.bias"), Array(np.zeros(8, np.int64)), "arrays: array 'body.bias' "),
    (("strategies",), None, "strategies: Input should be a valid dictionary"),
    (("strategies",), {}, "KeyError: 'edges'"),
    (("strategies", "edges"), {"edge-0": {}}, "the state is of the edges edge-0, and here are edge-0, edge-1"),
    (("strategies", "edges"), {"edge-0": {}, "edge-1": {}}, "KeyError: 'edge'"),
    (("strategies", "cloud", "eta"), 9.0, "ValueError: FedAdam.eta is 0.05 in this run"),
    (("strategies", "cloud", "aggregate_train"), 1, "FedAdam.aggregate_train is no data"),
    (OF_ADAM, 5, "AttributeError: 'int'"),
    (OF_ADAM, {"a": 1}, "Error: "),
    ((*OF_ADAM, "body.bias"), WRONG_SHAPE, "ValueError: operands could not be broadcast"),
    (("clients",), {"99": b""}, "ValueError: states of unknown partitions"),
    (("clients",), {"0": b"\xff"}, "DecodeError"),
    (("world",), {}, "KeyError: 'energy'"),
    (("world", "energy", "compute_joules"), WRONG_SHAPE, "ValueError: shapes"),
    (("world", "clock", "seconds"), ["x", 0.0], "ValueError: seconds"),
    (("strange",), 1, "strange: Extra inputs are not permitted"),
]


@pytest.mark.parametrize(("path", "wrong", "part"), WRONG)
def test_what_is_no_state_of_the_run_is_refused_in_one_line(path, wrong, part, folder, capsys):
    state = load_state(folder / "state.npz")
    holder = of(state, *path)
    if isinstance(holder, ArrayRecord):
        of(state, *path[:-1])[path[-2]] = ArrayRecord({**holder, path[-1]: wrong})
    else:
        holder[path[-1]] = wrong
    save_state(folder / "state.npz", state)
    assert main([f"resume={folder}", "global-rounds=3"]) == 2
    line = capsys.readouterr().err
    assert line.count("\n") == 1
    assert part in line
    assert str(folder) in line
    assert len(lines(folder, "global")) == 2


@pytest.mark.parametrize("key", RunState.model_fields)
def test_a_part_that_is_missing_is_named(key, folder, capsys):
    state = load_state(folder / "state.npz")
    state.pop(key, None)
    save_state(folder / "state.npz", state)
    is_newer = key in ("version", "best", "settings", "files", "lines", "bytes_at_work")
    assert main([f"resume={folder}", "global-rounds=3"]) == (0 if is_newer else 2)
    line = capsys.readouterr().err
    assert line == "" if is_newer else f"state.npz: is damaged: {key}: Field required" in line


def test_an_edges_state_that_is_none_is_refused_when_its_turn_comes(tmp_path, capsys):
    settings = {"num_clients": 4, "num_edges": 4, "edge_rounds": 1, "edge_strategy": "FedAdam(eta=0.05)"}
    settings |= {
        "task": "tests.app.own_tasks:Points",
        "cloud_strategy": "FedAvg(fraction_train=0.25,min_train_nodes=1)",
    }
    run_app(tmp_path / "longer", global_rounds=20, **settings)
    turns = [line["edge"] for line in lines(tmp_path / "longer", "edge")]
    late = max(set(turns[:10]) & set(turns[10:]), key=turns[10:].index)
    folder = run_app(tmp_path / "run", global_rounds=10, **settings)
    state = load_state(folder / "state.npz")
    state["strategies"]["edges"][late]["m_t"]["body.bias"] = WRONG_SHAPE
    save_state(folder / "state.npz", state)
    capsys.readouterr()
    assert main([f"resume={folder}", "global-rounds=20"]) == 2
    line = capsys.readouterr().err
    assert line.count("\n") == 1
    assert "state.npz: the first round with it failed" in line
    assert ": ValueError: operands could not be broadcast" in line
    assert len(lines(folder, "global")) == 10 + turns[10:].index(late) > 10


SMALL = {"num_clients": 4, "edge_rounds": 1, "local_epochs": 1, "batches_per_epoch": 1}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Return a results folder that this edition has made."""
    return run_app(tmp_path_factory.mktemp("made") / "run", algorithm="h-fedavg", seed=3, **SMALL)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("seed", 4),
        ("alpha", 0.1),
        ("learning-rate", 0.5),
        ("edge-rounds", 2),
        ("batch-size", 8),
        ("cloud-strategy", "FedAvgM"),
        ("guard.mode", "warn"),
        ("algorithm", "hsfl"),
    ],
)
def test_a_setting_that_was_changed_in_the_config_is_named_with_what_it_was(key, value, made, tmp_path, capsys):
    folder = shutil.copytree(made, tmp_path / "run")
    config = json.loads((folder / "config.json").read_text())
    before = config[key]
    (folder / "config.json").write_text(json.dumps(config | {key: value}))
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert main([f"resume={folder}", "global-rounds=3"]) == 2
    done = f"as in {folder}/state.npz: set it so again, or begin a new run"
    assert capsys.readouterr().err == f"error: {key} = {value!r}: allowed is {before!r}, {done}\n"
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == files


def test_the_state_of_another_seed_is_refused(made, tmp_path, capsys):
    other = run_app(tmp_path / "other", algorithm="h-fedavg", seed=5, **SMALL)
    folder = shutil.copytree(made, tmp_path / "run")
    shutil.copyfile(other / "state.npz", folder / "state.npz")
    capsys.readouterr()
    assert main([f"resume={folder}", "global-rounds=3"]) == 2
    assert f"error: seed = 3: allowed is 5, as in {folder}/state.npz" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda texts: [], "lacks rounds, or has some twice"),
        (lambda texts: texts[1:], "has 5 lines up to round 2, not 6"),
        (lambda texts: texts[:1] + texts, "has 7 lines up to round 2, not 6"),
        (lambda texts: texts + texts, "lacks rounds, or has some twice"),
    ],
)
def test_metrics_that_have_lost_or_doubled_lines_are_refused(change, says, made, tmp_path, capsys):
    folder = shutil.copytree(made, tmp_path / "run")
    metrics = folder / "metrics.jsonl"
    metrics.write_text("".join(change(metrics.read_text().splitlines(keepends=True))))
    assert main([f"resume={folder}", "global-rounds=3"]) == 2
    error = f"error: {metrics}: {says}; allowed is the file that the run wrote\n"
    assert capsys.readouterr().err == error


def test_lines_are_counted_over_a_resume_and_what_may_change_may(made, tmp_path):
    folder = shutil.copytree(made, tmp_path / "run")
    for rounds in (3, 4):
        assert main([f"resume={folder}", f"global-rounds={rounds}", "stack=2"]) == 0
        assert load_state(folder / "state.npz")["lines"] == len((folder / "metrics.jsonl").read_text().splitlines())


@pytest.mark.parametrize("key", ["seed", "alpha", "num-clients"])
def test_a_config_that_has_lost_a_setting_is_refused(key, folder, capsys):
    values = json.loads((folder / "config.json").read_text())
    del values[key]
    (folder / "config.json").write_text(json.dumps(values))
    assert main([f"resume={folder}", "global-rounds=3"]) == 2
    allowed = "allowed is the file that the run wrote"
    assert capsys.readouterr().err == f"error: {folder / 'config.json'}: lacks {key!r}; {allowed}\n"
    assert json.loads((folder / "config.json").read_text()) == values


@pytest.mark.parametrize("name", ["config.json", "made-by.json"])
def test_a_damaged_file_is_named_before_anything_is_written(name, folder, capsys):
    (folder / name).write_text("{")
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert main([f"resume={folder}", "global-rounds=3"]) == 2
    assert capsys.readouterr().err.endswith(f"{folder / name}: is damaged; allowed is the file that the run wrote\n")
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
