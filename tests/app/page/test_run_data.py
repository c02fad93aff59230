"""What a page says of a run is what the run's files say, whether they are read at once or as they grow."""

import csv
import json
import math
import shutil
from collections import Counter

import pytest

from espalier.app.ground.errors import UserError
from espalier.app.page.run_data import RunReader
from espalier.app.reports.folder import ResultsFolder
from espalier.app.reports.owner import disown, own
from tests.app.page.runs import run_data
from tests.app.runs import lines, run_app

COMING = {"num_clients": 6, "batches_per_epoch": 1, "availability.mode": "markov", "availability.drop-out": 0.3}


@pytest.fixture(scope="module")
def coming(tmp_path_factory):
    return run_app(tmp_path_factory.mktemp("runs") / "coming", global_rounds=3, **COMING)


NO_ROUND = '{"round": 1, "scope": "global", "bytes": {}, "failures": 0, "wall_seconds": 1.0}\n'


def column(data, name):
    return dict(data["clients"]["columns"])[name]


def clients_in(line, field):
    return [client for clients in line[field] for client in clients]


def numbers_in(line, path=()):
    """Yield the path of each number in a line of metrics.jsonl, and the number."""
    for key, value in line.items():
        if isinstance(value, dict) and key != "clients":
            yield from numbers_in(value, (*path, key))
        elif isinstance(value, int | float) and not isinstance(value, bool) and key != "round":
            yield "/".join((*path, key)), value


@pytest.mark.parametrize("run", ["planned", "coming"])
def test_curves_are_the_figures_of_the_global_lines(run, request):
    folder = request.getfixturevalue(run)
    data, rounds = run_data(folder), lines(folder, "global")
    series = dict(data["series"])
    assert data["numbers"] == [line["round"] for line in rounds] == [1, 2, 3]
    for i, line in enumerate(rounds):
        told = dict(numbers_in(line))
        assert len(told) > 20
        assert {name: series[name][i] for name in told} == told


def test_curves_of_edges_are_the_figures_of_their_lines(planned):
    for edge in run_data(planned)["edges"]:
        own_lines = [line for line in lines(planned, "edge") if line["edge"] == edge["name"]]
        series = dict(edge["series"])
        assert series["accuracy"] == [line.get("accuracy") for line in own_lines]
        assert series["bytes"] == [sum(v for k, v in numbers_in(line) if k.startswith("bytes/")) for line in own_lines]
        assert series["plans/selected"] == [sum(len(plan["selected"]) for plan in line["plans"]) for line in own_lines]


def test_a_round_in_which_nothing_is_sent_has_no_bytes(tmp_path):
    away = {"availability.mode": "markov", "availability.leave": 1.0, "availability.back": 0.01}
    folder = run_app(tmp_path / "away", algorithm="fedavg", num_clients=2, evaluate_every=0, **away)
    first, last = lines(folder, "edge")
    assert first["bytes"] == {}  # all are away, and the last round alone is evaluated
    (edge,) = run_data(folder)["edges"]
    assert dict(edge["series"])["bytes"] == [0, sum(v for k, v in numbers_in(last) if k.startswith("bytes/"))]


@pytest.mark.parametrize("run", ["planned", "coming"])
def test_the_table_of_clients_is_clients_csv(run, request):
    folder = request.getfixturevalue(run)
    data = run_data(folder)
    with (folder / "clients.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    names = [edge["name"] for edge in data["edges"]]
    assert [names[place] for place in data["edge_of"]] == [row["edge"] for row in rows]
    for name in rows[0].keys() - {"client", "edge"}:
        assert column(data, name) == [float(row[name]) if row[name] else None for row in rows]


@pytest.mark.parametrize("run", ["planned", "coming"])
def test_the_table_while_a_run_goes_on_is_that_of_its_end(run, request, tmp_path):
    folder = request.getfixturevalue(run)
    begun = tmp_path / "begun"
    shutil.copytree(folder, begun)
    for name in ("summary.json", "clients.csv"):
        (begun / name).unlink()
    before, after = run_data(begun), run_data(folder)
    assert (before["state"], after["state"]) == ("interrupted", "over")
    told, at_the_end = dict(before["clients"]["columns"]), dict(after["clients"]["columns"])
    assert at_the_end.keys() - told.keys() == {"train_examples", "classes"}
    for name, values in told.items():
        so_far = [math.nan if value is None else value for value in values]
        end = [math.nan if value is None else value for value in at_the_end[name]]
        assert so_far == pytest.approx(end, abs=1e-5, nan_ok=True), name  # seconds are rounded in each line


def test_failures_are_those_of_the_summary_with_those_of_fine_tuning(tmp_path):
    diverging = {"fine_tune.rate": 1e38, "fine_tune.steps": 3}
    folder = run_app(tmp_path / "run", algorithm="phsfl", num_clients=2, **diverging)
    data, summary = run_data(folder), json.loads((folder / "summary.json").read_text())
    assert data["failures"] == summary["failures"] == 2
    assert column(data, "times_left_out") == [1, 1]
    assert [(client, number, why[:13]) for client, number, why in data["reasons"]] == [
        (0, 2, "fine-tuning: "),
        (1, 2, "fine-tuning: "),
    ]


def test_states_say_who_trained_was_away_dropped_out_or_waited(coming):
    data = run_data(coming)
    for line in lines(coming, "edge"):
        letters = data["states"][line["round"] - 1]
        rounds, gone = Counter(clients_in(line, "participants")), set(clients_in(line, "dropped_out"))
        away = Counter(clients_in(line, "away"))
        left_out = {one["client"] for one in line["failures"]} - gone
        for client, place in enumerate(data["edge_of"]):
            if data["edges"][place]["name"] == line["edge"]:
                expected = (
                    "d" if client in gone else "x" if client in left_out else "t" if rounds[client]
                    else "a" if away[client] else "w"
                )  # fmt: skip
                assert letters[client] == expected
    assert {letter for letters in data["states"] for letter in letters} >= {"d", "t", "a"}
    reason = {client: (number, why) for client, number, why in data["reasons"]}
    dropped = [(line["round"], client) for line in lines(coming, "edge") for client in clients_in(line, "dropped_out")]
    assert all(reason[client] >= (number, "it dropped out") for number, client in dropped)


def test_plans_have_cells_frequency_and_power_of_whom_they_selected(planned):
    plans, sums = run_data(planned)["tables"]
    columns, cells = (
        dict(plans["columns"]),
        {c["client"]: c["cell"] for c in ResultsFolder(planned).read_json("world.json")["clients"]},
    )
    rows = [
        (line["edge"], edge_round, client, cells[client], plan["frequency_hz"][i], plan["power_watts"][i])
        for line in lines(planned, "edge")[-2:]
        for edge_round, plan in enumerate(line["plans"], 1)
        for i, client in enumerate(plan["selected"])
    ]
    names = ("edge", "edge_round", "client", "cell", "frequency_hz", "power_watts")
    assert list(zip(*(columns[name] for name in names), strict=True)) == rows
    joules = sum(sum(dict(sums["columns"])[name]) for name in ("compute_joules", "upload_joules"))
    summary = json.loads((planned / "summary.json").read_text())
    assert joules == pytest.approx(summary["energy_joules"]["total"], rel=1e-12)


def test_files_that_grow_give_what_they_give_at_once(planned, tmp_path):
    reader = RunReader(tmp_path, "run")
    for name in ("config.json", "world.json"):
        shutil.copy(planned / name, tmp_path)
    assert reader.refresh()
    assert reader.data()["numbers"] == []
    whole = {name: (planned / name).read_bytes() for name in ("seconds.jsonl", "metrics.jsonl")}
    for share in range(1, 10):  # lines are cut wherever it may be
        for name, content in whole.items():
            (tmp_path / name).touch()
            with (tmp_path / name).open("r+b") as file:
                file.write(content[: len(content) * share // 9])
        reader.refresh()
    assert not reader.refresh()
    for name in ("summary.json", "clients.csv", "partition.csv", "made-by.json"):
        shutil.copy(planned / name, tmp_path)
    assert reader.refresh()
    at_once = run_data(planned) | {"label": "run"}
    assert reader.data() == at_once


def test_a_run_that_is_resumed_is_read_anew(planned, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(planned, folder)
    reader = RunReader(folder, "run")
    reader.refresh()
    kept = "".join(
        json.dumps(line) + "\n" for line in lines(planned, "edge") + lines(planned, "global") if line["round"] == 1
    )
    (folder / "new").write_text(kept)
    (folder / "new").replace(folder / "metrics.jsonl")
    assert reader.refresh()
    data = reader.data()
    assert data["numbers"] == [1]
    assert data["state"] == "interrupted"  # its summary is of more rounds
    assert [letters.count("t") for letters in data["states"]] == [run_data(planned)["states"][0].count("t")]


@pytest.mark.parametrize(
    ("ended", "goes_on"), [({}, {"global-rounds": 6}), ({"global-rounds": 6, "stop.bytes": 100}, {"stop.bytes": 0})]
)
def test_a_run_that_was_interrupted_behind_its_earlier_end_is_not_over(planned, tmp_path, ended, goes_on):
    folder = tmp_path / "run"
    shutil.copytree(planned, folder)
    config = json.loads((folder / "config.json").read_text())
    for settings, state in ((ended, "over"), (ended | goes_on, "interrupted")):
        (folder / "config.json").write_text(json.dumps(config | settings))
        data = run_data(folder)
        assert (data["state"], data["numbers"]) == (state, [1, 2, 3])


def test_a_run_that_has_an_owner_goes_on(planned, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(planned, folder)
    owner = own(folder, "output-dir")
    try:
        assert run_data(folder)["state"] == "running"
    finally:
        disown(owner)
    assert run_data(folder)["state"] == "over"


def test_a_damaged_line_is_told_and_what_is_before_it_shown(planned, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(planned, folder)
    content = (folder / "metrics.jsonl").read_text().splitlines(keepends=True)
    (folder / "metrics.jsonl").write_text("".join(content[:3]) + "no line\n" + "".join(content[3:]))
    data = run_data(folder)
    assert data["numbers"] == [1]
    assert data["notes"] == ["metrics.jsonl: a line is damaged; what is behind it is not shown"]


def test_files_of_something_else_are_one_line(planned, tmp_path):
    for name, content in (
        ("world.json", '{"clients": [{}]}'),
        ("clients.csv", "client,edge,loss\n0,west,many\n"),
        ("metrics.jsonl", '{"round": 1, "scope": "edge", "edge": "west", "failures": []}\n' + NO_ROUND),
        ("config.json", "[]"),
    ):
        folder = tmp_path / name
        shutil.copytree(planned, folder)
        (folder / name).write_text(content)
        with pytest.raises(UserError, match="allowed is the "):
            run_data(folder)


def test_a_folder_that_is_no_runs_is_one_line(tmp_path):
    with pytest.raises(UserError, match=r"resume = '.*': allowed is the results folder of a run, with its config.json"):
        run_data(tmp_path)
