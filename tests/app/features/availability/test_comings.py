"""Clients that come and go: who trains is who is there, whatever the engine, and all of it is counted."""

import pytest

from espalier.app.command_line import main
from espalier.app.comparison.runs import is_over
from espalier.app.config.parse import parse_config
from espalier.app.features.availability.comings import coming_and_going
from espalier.sim.availability import Markov
from tests.app.runs import lines, run_app, same_weights, summary
from tests.app.tiers.test_served import same_runs

SMALL = {"num_clients": 6, "num_edges": 2, "batches_per_epoch": 2, "batch_size": 8, "local_epochs": 1}
COMING = {"availability_mode": "markov", "availability_leave": 0.3, "availability_back": 0.6, "drop_out": 0.2}
CASES = {
    "fedavg": {"cloud_strategy": "FedAdam(eta=0.05)"},
    "h-fedavg": {"edge_strategy": "FedAvgM(server_momentum=0.5, server_learning_rate=0.9)", "participation": 0.7},
    "phsfl": {"fine_tune_steps": 2},
    "rawhfl": {"selected_per_edge": 1, "max_local_rounds": 2, "plan_value": "age"},
}


def trace(folder, *rows):
    path = folder / "trace.csv"
    path.write_text("client,from,to\n" + "".join(f"{client},{start},{end}\n" for client, start, end in rows))
    return {"availability_mode": "trace", "availability_trace": str(path)}


def participants(folder):
    """Return who took part, by global round and edge, for each edge round."""
    return {(line["round"], line["edge"]): line["participants"] for line in lines(folder, "edge")}


@pytest.mark.parametrize("algorithm", ["fedavg", "phsfl", "rawhfl"])
def test_who_never_leaves_gives_the_bits_of_clients_that_are_always_there(tmp_path, algorithm):
    settings = SMALL | CASES[algorithm] | {"algorithm": algorithm}
    plain = run_app(tmp_path / "plain", **settings)
    there = run_app(tmp_path / "there", **settings, availability_mode="markov", availability_leave=0.0)
    assert same_weights(plain, there)
    assert summary(there)["availability"] == {"away_share": 0, "dropped_out": 0, "edge_rounds_without_anybody": 0}
    assert "availability" not in summary(plain)
    assert not any("away" in line for line in lines(plain, "edge"))


def test_exactly_those_train_who_are_there(tmp_path):
    rows = trace(tmp_path, (0, 2, 4), (1, 1, 2), (1, 4, 9), (4, 3, 4), (5, 9, 10))
    folder = run_app(tmp_path / "run", algorithm="h-fedavg", edge_rounds=2, **SMALL | rows)
    assert participants(folder) == {
        (1, "edge-0"): [[1, 2], [0, 2]],
        (1, "edge-1"): [[3], [3]],
        (2, "edge-0"): [[0, 2], [1, 2]],
        (2, "edge-1"): [[3, 4], [3]],
    }
    assert [line["away"] for line in lines(folder, "edge")] == [[[0], [1]], [[4, 5], [4, 5]], [[1], [0]], [[5], [4, 5]]]
    assert summary(folder)["availability"]["away_share"] == 11 / 24
    assert summary(folder)["failures"] == 0


def test_a_round_without_anybody_leaves_the_model_and_the_run_goes_on(tmp_path):
    rows = trace(tmp_path, *((client, start, start + 1) for client in range(6) for start in (1, 3)))
    folder = run_app(tmp_path / "run", algorithm="h-fedavg", edge_rounds=1, global_rounds=3, **SMALL | rows)
    first, second, third = lines(folder, "global")
    assert second["test"] == first["test"] != third["test"]
    assert summary(folder)["availability"] == {
        "away_share": 1 / 3,
        "dropped_out": 0,
        "edge_rounds_without_anybody": 2,
    }


def test_a_run_in_which_nobody_could_take_part_is_over(tmp_path):
    rows = trace(tmp_path, *((client, 2, 3) for client in range(6)))
    folder = run_app(tmp_path / "run", algorithm="fedavg", global_rounds=1, **SMALL | rows)
    assert summary(folder)["availability"]["away_share"] == 1
    assert is_over(folder)


@pytest.mark.parametrize("algorithm", CASES)
def test_a_resumed_run_has_the_same_bits(tmp_path, algorithm):
    settings = SMALL | CASES[algorithm] | COMING | {"algorithm": algorithm}
    whole = run_app(tmp_path / "whole", **settings, global_rounds=3)
    # The chain is the library's, by the run's seed.
    model, edge_rounds = Markov(0, 0.3, 0.6), 1 if algorithm == "fedavg" else 2
    every = [[model.is_there(client, e) for client in range(6)] for e in range(1, 3 * edge_rounds + 1)]
    own = summary(whole)["availability"]
    assert own["away_share"] == 1 - sum(map(sum, every)) / (6 * len(every))
    assert own["dropped_out"] > 0
    half = run_app(tmp_path / "half", **settings, global_rounds=1)
    assert main([f"resume={half}", "global-rounds=3"]) == 0
    assert same_weights(whole, half)
    assert summary(half)["availability"] == own


@pytest.mark.parametrize("algorithm", ["fedavg", "rawhfl"])
def test_a_run_with_workers_has_the_same_bits(ray_here, tmp_path, algorithm):
    settings = SMALL | CASES[algorithm] | COMING | {"algorithm": algorithm}
    here = run_app(tmp_path / "here", **settings)
    assert same_runs(here, run_app(tmp_path / "ray", **settings, engine="ray", ray_workers=2))


def test_who_drops_out_is_counted_once_by_the_run_and_named(tmp_path):
    folder = run_app(tmp_path / "run", algorithm="fedavg", **SMALL | {"drop_out": 0.5, "global_rounds": 4})
    comings = coming_and_going(parse_config({"availability.drop-out": 0.5, "num-clients": 6}))
    gone = [[n for n in range(6) if comings.drops_out(n, e)] for e in range(1, 5)]
    assert [line["dropped_out"] for line in lines(folder, "edge")] == [[own] for own in gone]
    assert summary(folder)["availability"]["dropped_out"] == summary(folder)["failures"] == sum(map(len, gone)) > 0
    reasons = {failure["reason"] for line in lines(folder, "edge") for failure in line["failures"]}
    assert all("it dropped out before it answered" in reason for reason in reasons)


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({"availability.mode": "often"}, "availability.mode = 'often': allowed is "),
        ({"availability.back": 0.0}, "availability.back = 0.0: allowed is "),
        ({"availability.drop-out": 1.0}, "availability.drop-out = 1.0: allowed is "),
        ({"availability.mode": "trace"}, "availability.trace = '': allowed is the path of a CSV file client,from,to"),
        (
            {"availability.mode": "trace", "availability.trace": "no/such.csv"},
            "availability.trace = 'no/such.csv': allowed is a CSV file that can be read: No such file",
        ),
        (
            {"availability.mode": "markov", "async.mode": "fedbuff", "algorithm": "h-fedavg"},
            "availability.mode = 'markov': allowed is 'always' for async.mode = 'fedbuff'",
        ),
        (
            {"availability.drop-out": 0.1, "async.mode": "fedbuff", "algorithm": "h-fedavg"},
            "availability.drop-out = 0.1: allowed is 0.0 for async.mode = 'fedbuff'",
        ),
    ],
)
def test_what_can_not_be_is_refused_with_a_line(given, line, capsys):
    assert main([*(f'{key}="{value}"' if isinstance(value, str) else f"{key}={value}" for key, value in given.items())])
    assert line in " ".join(capsys.readouterr().err.split())


def test_a_trace_that_is_none_is_refused_with_its_line(tmp_path, capsys):
    rows = trace(tmp_path, (0, 1, 2), (9, 1, 2))
    assert main(["num-clients=6", "availability.mode=trace", f"availability.trace={rows['availability_trace']}"])
    said = " ".join(capsys.readouterr().err.split())
    assert "availability.trace = " in said
    assert "line 3" in said


def test_always_there_is_nothing_in_front_of_edges():
    assert coming_and_going(parse_config({})) is None


@pytest.mark.parametrize("algorithm", ["centralised", "top-popular"])
def test_who_comes_and_goes_is_nothing_to_a_run_that_trains_no_clients(tmp_path, algorithm):
    settings = {"dataset": "video-caching"} if algorithm == "top-popular" else {}
    settings |= {"algorithm": algorithm, "num_clients": 4, "local_epochs": 1}
    never = {"availability_mode": "markov", "availability_leave": 1.0, "availability_back": 0.01}
    plain, folder = run_app(tmp_path / "plain", **settings), run_app(tmp_path / "run", **settings, **never)
    assert "availability" not in summary(folder)
    assert summary(folder)["failures"] == 0
    if algorithm == "centralised":
        assert same_weights(folder, plain)
    run_app(tmp_path / "trace", **settings, availability_mode="trace", availability_trace="/nowhere.csv")
