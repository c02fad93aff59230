"""A run that was interrupted goes on to the same bits."""

import json
import re
import shlex
import signal
import subprocess
import sys
import time

import pytest
import torch
from PIL import Image

from espalier.app.command_line import main
from espalier.app.ground.checkpoint import load_state, save_state
from espalier.app.ground.errors import UserError
from espalier.app.reports.folder import FREE_TO_CHANGE
from espalier.app.reports.progress import LogProgress
from espalier.app.run.run import run
from tests.app.assembling import config_of, engine_of
from tests.app.pictures import image_folder
from tests.app.runs import ROOT, key_of, lines, run_app, same_weights, summary, weights

DOCS = ROOT / "docs/resume.md"
# Both tiers hold state, and clients are sampled.
STATEFUL = {
    "cloud_strategy": "FedAdam(eta=0.05)",
    "edge_strategy": "FedAvgM(server_momentum=0.5, server_learning_rate=0.9)",
    "participation": 0.5,
    "optimizer": "adam",
    "learning_rate": 0.01,
    "seed": 4,
    "validation_share": 0.2,
    "local_epochs": 1,
    "batches_per_epoch": 2,
    "num_clients": 4,
}
FEW = {"num_clients": 4}


def without_times(line):
    return {key: value for key, value in line.items() if "seconds" not in key}


def assert_same_run(left, right):
    assert same_weights(left, right)
    for scope in ("edge", "global"):
        assert list(map(without_times, lines(left, scope))) == list(map(without_times, lines(right, scope)))
    assert without_times(summary(left)) == without_times(summary(right))
    if "best" in summary(right):
        assert (left / "best-model.pt").read_bytes() == (right / "best-model.pt").read_bytes()


def test_a_run_killed_in_the_middle_of_a_round_resumes_to_the_same_bits(tmp_path):
    whole = run_app(tmp_path / "whole", global_rounds=24, **STATEFUL)
    killed = tmp_path / "killed"
    settings = {"global-rounds": 24, "output-dir": killed} | {key_of(k): v for k, v in STATEFUL.items()}
    process = subprocess.Popen(
        [sys.executable, "-m", "espalier.app", *(f"{key}={value}" for key, value in settings.items())],
        stdout=subprocess.DEVNULL,
        cwd=tmp_path,
    )
    try:
        while len(lines_so_far(killed)) < 3 * 3:
            assert process.poll() is None, "the run was over before it could be killed"
            time.sleep(0.01)
    finally:
        process.kill()
        process.wait()
    done = len(lines_so_far(killed)) // 3
    assert 3 <= done < 24
    assert main([f"resume={killed}"]) == 0
    assert_same_run(killed, whole)


def test_an_interrupt_says_what_to_type_to_go_on(tmp_path):
    folder = tmp_path / "it's here"
    settings = {"global-rounds": 100, "output-dir": folder} | {key_of(k): v for k, v in STATEFUL.items()}
    process = subprocess.Popen(
        [sys.executable, "-m", "espalier", *(f"{key}={value}" for key, value in settings.items())],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
    )
    while len(lines_so_far(folder)) < 3:
        assert process.poll() is None, "the run was over before it could be interrupted"
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 130, error
    said = "interrupted; to go on after the last whole round: python -m espalier "
    assert error.startswith(said)
    assert shlex.split(error.removeprefix(said)) == [f"resume={folder}"]


def lines_so_far(folder):
    file = folder / "metrics.jsonl"
    return file.read_text().splitlines() if file.exists() else []


def test_lines_of_a_round_that_was_not_saved_are_dropped(tmp_path):
    whole = run_app(tmp_path / "whole", global_rounds=3, **FEW)
    folder = run_app(tmp_path / "run", global_rounds=2, **FEW)
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"round": 3, "scope": "edge", "edge": "edge-0"}\n{"round": 3, "sco')
    assert main([f"resume={folder}", "global-rounds=3"]) == 0
    assert_same_run(folder, whole)


def test_a_run_killed_before_its_first_round_was_saved_starts_again(tmp_path):
    whole = run_app(tmp_path / "whole", **FEW)
    folder = run_app(tmp_path / "run", **FEW)
    (folder / "state.npz").unlink()
    first_round = [line for line in lines_so_far(folder) if '"round": 1,' in line]
    (folder / "metrics.jsonl").write_text("\n".join(first_round) + "\n")
    assert main([f"resume={folder}"]) == 0
    assert_same_run(folder, whole)


def test_a_run_that_lost_its_state_is_refused_and_keeps_its_metrics(tmp_path, capsys):
    folder = run_app(tmp_path / "run", global_rounds=3, **FEW)
    (folder / "state.npz").unlink()
    before = lines_so_far(folder)
    capsys.readouterr()
    assert main([f"resume={folder}"]) == 2
    assert f"error: {folder / 'state.npz'}: is missing" in capsys.readouterr().err
    assert lines_so_far(folder) == before


def test_a_run_can_be_made_longer_which_is_remembered_and_not_shorter(tmp_path, capsys):
    folder = run_app(tmp_path / "run", global_rounds=2, **FEW)
    assert main([f"resume={folder}", "global-rounds=3"]) == 0
    assert_same_run(folder, run_app(tmp_path / "whole", global_rounds=3, **FEW))
    assert json.loads((folder / "config.json").read_text())["global-rounds"] == 3
    capsys.readouterr()
    assert main([f"resume={folder}", "global-rounds=1"]) == 2
    assert "global-rounds = 1: allowed is at least 3" in capsys.readouterr().err
    assert len(lines(folder, "global")) == 3


def test_a_run_whose_servers_blocks_had_an_optimizer_of_their_own_goes_on_with_it(tmp_path, capsys):
    # These were the defaults of earlier editions, whatever the clients' optimizer was.
    own = {"server_optimizer": "sgd", "server_momentum": 0.0, "server_weight_decay": 0.0}
    settings = {"algorithm": "sfl-v1", "optimizer": "adam", "learning_rate": 0.003, **FEW}
    folder = run_app(tmp_path / "run", global_rounds=1, **settings, **own)
    assert main([f"resume={folder}", "global-rounds=2", "split.server-optimizer=as-clients"]) == 2
    said = "split.server-optimizer = 'adam': allowed is 'sgd', as in the run to resume"
    assert said in capsys.readouterr().err
    assert main([f"resume={folder}", "global-rounds=2"]) == 0
    assert same_weights(folder, run_app(tmp_path / "whole", global_rounds=2, **settings, **own))
    assert not same_weights(folder, run_app(tmp_path / "as-clients", global_rounds=2, **settings))


def test_a_run_of_flowers_runtime_goes_on_without_it(tmp_path):
    folder = run_app(tmp_path / "run", global_rounds=1, **FEW)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"engine": "flower"}))
    assert main([f"resume={folder}", "global-rounds=2"]) == 0
    assert json.loads((folder / "config.json").read_text())["engine"] == "in-process"
    assert same_weights(folder, run_app(tmp_path / "whole", global_rounds=2, **FEW))


@pytest.mark.parametrize(("algorithm", "plain"), [("scaffold", "h-fedavg"), ("hsfl-scaffold", "hsfl")])
def test_where_no_state_of_clients_was_saved_edges_forget_theirs_of_them(tmp_path, algorithm, plain):
    settings = {"edge_rounds": 1, "num_edges": 2, **FEW}
    folder = run_app(tmp_path / "run", algorithm=algorithm, global_rounds=1, **settings)
    state = load_state(folder / "state.npz")
    save_state(folder / "state.npz", state | {"clients": {}})  # as SuperNodes leave it
    assert main([f"resume={folder}", "global-rounds=2"]) == 0
    # Without corrections a round is that of plain averages.
    expected = weights(run_app(tmp_path / "plain", algorithm=plain, global_rounds=2, **settings))
    for name, found in weights(folder).items():
        torch.testing.assert_close(found, expected[name], rtol=0, atol=1e-6)


def test_a_run_whose_learning_rates_fall_over_its_rounds_keeps_their_number(tmp_path, capsys):
    folder = run_app(tmp_path / "run", global_rounds=2, schedule="cosine", **FEW)
    assert main([f"resume={folder}", "global-rounds=3"]) == 2
    assert "global-rounds = 3: allowed is 2, as in the run to resume" in capsys.readouterr().err


def test_other_data_are_refused_and_the_same_data_elsewhere_are_not(tmp_path, capsys):
    first, other = (image_folder(tmp_path / name) for name in ("first", "other"))
    Image.new("RGB", (16, 16), (1, 2, 3)).save(other / "train/cat/00.png")
    settings = {"dataset": "image-folder", "num_clients": 2, "global_rounds": 1, "min_samples": 2}
    folder = run_app(tmp_path / "run", data_dir=str(first), **settings)
    capsys.readouterr()
    assert main([f"resume={folder}", f"data-dir={other}", "global-rounds=2"]) == 2
    assert f"data-dir = '{other}': allowed is the data of the run to resume" in capsys.readouterr().err
    first.rename(tmp_path / "moved")
    assert main([f"resume={folder}", f"data-dir={tmp_path / 'moved'}", "global-rounds=2"]) == 0


FILES = {
    "availability.moves": ("client,from,edge\n3,9,edge-0\n", {}),
    "availability.trace": ("client,from,to\n3,9,10\n", {"availability_mode": "trace"}),
    "async.trace": ("client,seconds\n0,1\n1,1\n2,1\n3,2\n", {"async_mode": "fedbuff"}),
}


@pytest.mark.parametrize("key", FILES)
def test_a_file_that_the_run_goes_by_must_hold_what_it_held(tmp_path, capsys, key):
    path = tmp_path / "of-run.csv"
    text, settings = FILES[key]
    path.write_text(text)
    folder = run_app(tmp_path / "run", **FEW, **settings, **{key.replace(".", "_"): str(path)}, global_rounds=1)
    path.write_text(text.replace("\n3,", "\n2,"))
    assert main([f"resume={folder}", "global-rounds=2"]) == 2
    line = f"{key} = '{path}': allowed is a file with what it held for the run to resume, {folder}"
    assert capsys.readouterr().err == f"error: {line}\n"
    path.write_text(text)
    assert main([f"resume={folder}", "global-rounds=2"]) == 0
    state = load_state(folder / "state.npz")
    save_state(folder / "state.npz", {name: value for name, value in state.items() if name != "files"})  # an old one
    path.write_text(text.replace("9", "8"))
    assert main([f"resume={folder}", "global-rounds=3"]) == 0


def test_a_file_without_use_may_be_missing(tmp_path):
    folder = run_app(tmp_path / "run", **FEW, async_trace="nowhere.csv", global_rounds=1)
    assert load_state(folder / "state.npz")["files"] == {}
    assert main([f"resume={folder}", "global-rounds=2"]) == 0


def test_a_finished_run_can_be_resumed_without_harm(tmp_path):
    whole = run_app(tmp_path / "whole", **FEW)
    folder = run_app(tmp_path / "run", **FEW)
    assert main([f"resume={folder}"]) == 0
    assert_same_run(folder, whole)


def test_a_damaged_state_is_named(tmp_path, capsys):
    folder = run_app(tmp_path / "run", **FEW)
    (folder / "state.npz").write_bytes((folder / "state.npz").read_bytes()[:1000])
    capsys.readouterr()
    assert main([f"resume={folder}"]) == 2
    assert f"error: {folder / 'state.npz'}: is damaged" in capsys.readouterr().err


def test_a_resumed_run_has_no_other_folder_or_settings(tmp_path, capsys):
    folder = run_app(tmp_path / "run", global_rounds=1, **FEW)
    capsys.readouterr()
    assert main([f"resume={folder}", "global-rounds=2", f"output-dir={tmp_path / 'other'}"]) == 2
    expected = f"other': allowed is '' or '{folder}': a resumed run goes on in its folder"
    assert expected in capsys.readouterr().err
    assert not (tmp_path / "other").exists()
    for change, before in (("learning-rate=0.5", "0.1"), ("dataset=cifar10", "'digits'")):
        assert main([f"resume={folder}", "global-rounds=2", change]) == 2
        assert f": allowed is {before}, as in the run to resume, {folder}" in capsys.readouterr().err
    # The settings of before with resume added, as under flwr run.
    assert main([f"resume={folder}", "global-rounds=2", f"output-dir={folder}"]) == 0
    assert summary(folder)["rounds"] == 2


@pytest.mark.parametrize(
    ("edges", "message"),
    [
        (("west", "east", "east", "east"), "client 1 is at edge 'east': allowed is 'west', as before resume"),
        (("west", "west", "north", "north"), "client 2 is at edge 'north': allowed is 'east', as before resume"),
        (("east", "east", "east", "east"), "client 0 is at edge 'east': allowed is 'west', as before resume"),
    ],
)
def test_clients_stay_at_the_edges_that_hold_their_state(tmp_path, edges, message):
    folder = tmp_path / "run"

    def go(edges, **settings):
        config = config_of(num_clients=4, batches_per_epoch=1, **settings)
        return run(config, engine_of(config, [{"edge-name": edge} for edge in edges]), LogProgress(), tmp_path)

    before = ("west", "west", "east", "east")
    go(before, global_rounds=1, output_dir=str(folder))
    saved = (folder / "metrics.jsonl").read_text()
    with pytest.raises(UserError, match=message):
        go(edges, global_rounds=2, resume=str(folder))
    assert (folder / "metrics.jsonl").read_text() == saved
    go(before, global_rounds=2, resume=str(folder))
    assert len(lines(folder, "global")) == 2


def test_the_docs_name_what_may_change_on_resume():
    (sentence,) = re.findall(r"Only the folders of data and cache, the\n?(.+?) may change", DOCS.read_text(), re.S)
    named = set(re.findall("`(.+?)`", sentence))
    in_words = {"resume", "output-dir", "data-dir", "data.cache-dir", "global-rounds", "engine"}
    by_docs = {"ray.*" if key.startswith("ray.") else key for key in FREE_TO_CHANGE - in_words}
    assert named == by_docs


@pytest.mark.parametrize("algorithm", ["h-fedavg", "phsfl"])
def test_a_run_begun_side_by_side_goes_on_one_client_after_the_other_and_the_other_way_round(tmp_path, algorithm):
    settings = {"algorithm": algorithm, "split_execution": "fused", "num_clients": 4, "fine_tune_steps": 2}
    whole = run_app(tmp_path / "whole", global_rounds=4, **settings)
    for begun, then in ((4, 0), (0, 4)):
        folder = run_app(tmp_path / f"stack-{begun}", global_rounds=2, stack=begun, **settings)
        assert main([f"resume={folder}", "global-rounds=4", f"stack={then}", "device=cpu"]) == 0
        saved = json.loads((folder / "config.json").read_text())
        assert (saved["stack"], saved["device"]) == (then, "cpu")
        for name, values in weights(folder).items():
            torch.testing.assert_close(values, weights(whole)[name], rtol=0, atol=1e-5)
