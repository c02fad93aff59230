"""Which runs a sweep has, and what is refused before any of them begins."""

import json
import re

import pytest

from espalier.app.command_line import main
from espalier.app.ground.errors import UserError
from espalier.app.sweeps.command import default_workers, warn_of_equal_runs
from espalier.app.sweeps.grid import check_data, planned_runs, read_sweep, read_values, run_by_folder


def planned(*arguments):
    return planned_runs(read_sweep(arguments))


@pytest.mark.parametrize(
    ("key", "text", "values"),
    [
        ("seed", "0,1,2", [0, 1, 2]),
        ("seed", "[0, 1]", [0, 1]),
        ("alpha", "0.1", [0.1]),
        ("algorithm", "hsfl,phsfl", ["hsfl", "phsfl"]),
        ("algorithm", "[hsfl, phsfl]", ["hsfl", "phsfl"]),
        ("cut-layer", '"1,2",3', ["1,2", 3]),
        ("cut-layer", '"1,2"', ["1,2"]),
        ("cut-layer", '["1,2", "2,1"]', ["1,2", "2,1"]),
        ("cloud-strategy", "FedAdam(eta=0.1, tau=0.2),FedAvg", ["FedAdam(eta=0.1, tau=0.2)", "FedAvg"]),
        ("data-dir", "2026,2027", ["2026", "2027"]),
        ("data-dir", "", [""]),
    ],
)
def test_values_have_commas_between_them(key, text, values):
    assert read_values(key, text) == values


@pytest.mark.parametrize("text", ["0,,1", "0,1,", "0,0", "[]"])
def test_a_list_with_a_hole_or_a_value_twice_is_refused(text):
    with pytest.raises(UserError, match=r"^seed = .*: allowed is "):
        read_values("seed", text)


def test_all_combinations_are_made_the_last_key_first(tmp_path):
    runs = planned("algorithm=fedavg,h-fedavg", "alpha=0.1,0.5", "seed=0,1", "num-clients=4")
    chosen = [tuple(run.chosen.values()) for run in runs]
    assert chosen[:3] == [("fedavg", 0.1, 0), ("fedavg", 0.1, 1), ("fedavg", 0.5, 0)]
    assert len(set(chosen)) == 8
    assert runs[0].name == "algorithm-fedavg_alpha-0.1_seed-0"
    assert runs[0].given == {"num-clients": 4, "algorithm": "fedavg", "alpha": 0.1, "seed": 0}
    assert runs[0].settings["engine"] == "in-process"


def test_a_settings_file_has_a_table_of_lists_and_cases_and_the_command_line_wins(tmp_path):
    file = tmp_path / "study.toml"
    file.write_text(
        'num-clients = 4\n[sweep]\nseed = [0, 1]\nsplit.server-order = ["one-by-one"]\n'
        '[sweep.case."V1, L1"]\nalgorithm = "sfl-v1"\n'
        '[sweep.case.V2]\nalgorithm = "sfl-v2"\nsplit.server-momentum = 0.5\n'
    )
    sweep = read_sweep([str(file), "seed=3,4", "num-clients=6"])
    runs = planned_runs(sweep)
    assert [run.chosen for run in runs] == [{"case": c, "seed": s} for c in ("V1, L1", "V2") for s in (3, 4)]
    assert [run.settings["algorithm"] for run in runs] == ["sfl-v1"] * 2 + ["sfl-v2"] * 2
    assert [run.settings["split.server-momentum"] for run in runs] == [0.0, 0.0, 0.5, 0.5]
    assert {run.settings["split.server-order"] for run in runs} == {"one-by-one"}
    assert {run.settings["num-clients"] for run in runs} == {6}
    assert runs[2].name == "V2_seed-3"
    assert runs[0].name.startswith("V1-L1_seed-3_")
    assert sweep.folder.name == "study"


def test_the_command_line_wins_over_cases_too_and_cases_over_their_files_other_keys(tmp_path):
    file = tmp_path / "study.toml"
    file.write_text(
        'learning-rate = 0.2\n[sweep.case.V1]\nalgorithm = "sfl-v1"\nlearning-rate = 0.1\n'
        '[sweep.case.V2]\nalgorithm = "sfl-v2"\n'
    )

    def rates(*given):
        return [run.settings["learning-rate"] for run in planned_runs(read_sweep([str(file), *given]))]

    assert rates() == [0.1, 0.2]
    assert rates("learning-rate=0.5") == [0.5, 0.5]
    assert rates("learning-rate=0.5,0.6") == [0.5, 0.6] * 2


@pytest.mark.parametrize(
    ("second", "says"),
    [
        ("alpha = 0.1", "a-b_seed-0 and a-b_seed-0 are the same run"),
        ("alpha = 0.5", "the folder a-b_seed-0: allowed are cases and values"),
    ],
)
def test_cases_of_one_name_are_refused_for_the_folder_and_of_one_setting_for_that(second, says, tmp_path):
    file = tmp_path / "study.toml"
    file.write_text(f'[sweep]\nseed = [0]\n[sweep.case."a b"]\nalpha = 0.1\n[sweep.case.a-b]\n{second}\n')
    with pytest.raises(UserError, match=says):
        planned_runs(read_sweep([str(file)]))


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["sede=0,1"], "unknown key 'sede': did you mean 'seed', "),
        (["seed=0,x"], "error: seed = 'x': allowed is an integer"),
        (
            ["algorithm=h-fedavg,ditto", "edge-strategy=FedProx", "num-edges=2"],
            "edge-strategy = 'FedProx': allowed is another strategy",
        ),
        (["engine=flower"], "engine = 'flower': allowed is 'in-process' or 'ray'"),
        (["resume=results/old"], "resume = 'results/old': allowed is none"),
        (["output-dir=a,b"], "output-dir = ['a', 'b']: allowed is one folder for all runs"),
        (["alpha=0.5,5e-1"], "alpha = '0.5,5e-1': allowed is one value or more, each once"),
        (["algorithm=phsfl", "cut-layer=1,9"], "cut-layer = 9: allowed is "),
        (["algorithm=phsfl", "tail-layer=none,nowhere"], "tail-layer = 'nowhere': allowed is "),
        (["dataset=image-folder", "data-dir=/nowhere"], "/nowhere"),
        (["seed=0,1", "--workers=-1"], "--workers = -1: allowed is "),
        (["gone.toml"], "gone.toml: can't be read"),
        (
            ["edge-strategy=FedAvg,Bulyan", "num-clients=4"],
            "allowed is another strategy, or more clients of an edge: Bulyan needs the replies of 3, there are 2",
        ),
    ],
)
def test_a_bad_key_or_value_gets_one_line_before_anything_starts(arguments, says, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["sweep", *arguments]) == 2
    printed = capsys.readouterr().err
    assert printed.count("\n") == 1
    assert printed.startswith("error: ")
    assert says in printed
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize("folder", ["5", "0", "true", "2026-01-02", '["a", "b"]'])
def test_a_folder_in_a_file_is_a_string(folder, tmp_path, capsys):
    (tmp_path / "study.toml").write_text(f"output-dir = {folder}\nseed = 1\n")
    assert main(["sweep", str(tmp_path / "study.toml")]) == 2
    printed = capsys.readouterr().err
    assert printed.startswith("error: output-dir = ")
    assert printed.endswith(": allowed is a string\n")


def test_a_single_run_refuses_a_table_of_a_sweep(tmp_path, capsys):
    (tmp_path / "study.toml").write_text("[sweep]\nseed = [0, 1]\n")
    assert main([str(tmp_path / "study.toml")]) == 2
    assert "espalier sweep FILE.toml" in capsys.readouterr().err


def test_a_run_is_found_again_by_its_settings_and_no_other_is_taken_for_it(tmp_path):
    (run,) = planned("seed=1", "num-clients=4")
    folder = tmp_path / "by-hand"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({**run.settings, "output-dir": str(folder), "engine": "ray"}))
    first, second = planned("seed=1,2", "num-clients=4", "data.cache-dir=/elsewhere")
    assert list(run_by_folder([first, second], tmp_path)) == [folder, tmp_path / second.name]

    taken = tmp_path / second.name
    taken.mkdir()
    (taken / "config.json").write_text(json.dumps({**second.settings, "learning-rate": 0.7}))
    with pytest.raises(UserError, match=r"seed-2 in it has learning-rate = 0.7, not 0.1$"):
        run_by_folder([first, second], tmp_path)
    (taken / "config.json").write_text(json.dumps({**second.settings, "global-rounds": 4}))
    longer = re.escape(f"has global-rounds = 4, not 10; to make it longer: espalier resume={taken} global-rounds=10")
    with pytest.raises(UserError, match=longer):
        run_by_folder([first, second], tmp_path)


def test_swept_values_without_effect_are_told_once(capsys):
    warn_of_equal_runs(planned("algorithm=fedavg,hsfl", "cut-layer=1,2", "seed=0,1"))
    line = "in 2 of 8 runs cut-layer = 2 has no effect: algorithm = 'fedavg' cuts no model"
    assert capsys.readouterr().err == f"warning: {line}\n"


def test_workers_share_the_cores(monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda process: set(range(8)), raising=False)
    assert default_workers(planned("train.torch-threads=1,2")) == 4
    assert default_workers(planned("seed=0,1")) == 8
    assert default_workers(planned("engine=ray")) == 1


def test_data_are_looked_at_once_for_runs_that_differ_in_nothing_that_matters(monkeypatch):
    looked = []
    monkeypatch.setattr("espalier.app.sweeps.grid.checked_task", looked.append)
    check_data(planned("alpha=0.1,0.5", "learning-rate=0.1,0.2", "seed=0,1"))
    assert [config.data.alpha for config in looked] == [0.1, 0.5]


def test_every_strategy_is_held_against_the_model(monkeypatch):
    looked = []
    monkeypatch.setattr("espalier.app.sweeps.grid.checked_task", looked.append)
    strategies = "FedAvg,QFedAvg(client_learning_rate=0.1)"
    check_data(planned("algorithm=h-fedavg", f"cloud-strategy={strategies}", f"edge-strategy={strategies}"))
    assert len(looked) == 4


def test_every_trace_is_read(tmp_path, monkeypatch):
    (tmp_path / "good.csv").write_text("client,seconds\n0,1.5\n1,2.5\n")
    (tmp_path / "short.csv").write_text("client,seconds\n0,1.5\n")
    monkeypatch.setattr("espalier.app.sweeps.grid.checked_task", lambda config: None)
    traces = f"async.trace={tmp_path / 'good.csv'},{tmp_path / 'short.csv'}"
    with pytest.raises(UserError, match=r"^async.trace = '.*short.csv': allowed is "):
        check_data(planned("algorithm=fedavg", "num-clients=2", "async.mode=fedbuff,fedasync", traces))
