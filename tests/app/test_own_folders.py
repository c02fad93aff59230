"""Runs whose clients have image folders of their own."""

import csv
import json
import shutil
from pathlib import Path
from statistics import fmean

import pytest
from PIL import Image

from espalier.app.command_line import main
from espalier.app.ground.errors import UserError
from espalier.app.reports.progress import LogProgress
from espalier.app.run.run import run
from espalier.app.wiring.federation import gather_clients
from espalier.app.wiring.task_of_run import build_task
from tests.app.assembling import config_of, engine_of
from tests.app.own_folders import OWN, SMALL, cut, noise_folder, own_folders
from tests.app.runs import key_of, lines, rows_of_clients, run_app, same_weights, summary


def engine_with(config, folders):
    """Return an engine with nodes whose configs name these folders."""
    return engine_of(config, [{"data-dir": str(folder)} for folder in folders])


def gathered(config, folders):
    """Return the profiles of clients with these folders."""
    return gather_clients(engine_with(config, folders).grid, config.federation.num_clients, config.deploy)


@pytest.mark.parametrize(
    ("partition", "algorithm"),
    [("iid", {"edge_rounds": 3}), ("shards", {"algorithm": "phsfl", "batch_size": 8})],
    ids=["iid", "shards, split"],
)
def test_folders_cut_by_a_partition_give_its_weights_to_the_bit(tmp_path, partition, algorithm):
    whole = noise_folder(tmp_path / "whole")
    shared = {**SMALL, **algorithm, "data_dir": str(whole), "partition": partition, "seed": 3}
    told = cut(whole, config_of(**shared), lambda client: tmp_path / "own" / str(client))
    shutil.copytree(whole / "test", tmp_path / "own" / "test")
    first = run_app(tmp_path / "1", **shared)
    own = shared | told | {"data_dir": str(tmp_path / "own"), "partition": "own"}
    second = run_app(tmp_path / "2", **own)
    assert same_weights(first, second)
    assert rows_of_clients(first) == rows_of_clients(second)
    for key in ("global", "test", "bytes", "personalised"):
        assert summary(first).get(key) == summary(second).get(key)
    assert not same_weights(first, run_app(tmp_path / "3", **(own | {"pixel_mean": "0.5,0.5,0.5"})))


def test_folders_that_nodes_name_give_the_same_weights_and_the_server_needs_a_test_pool_only(tmp_path):
    whole = noise_folder(tmp_path / "whole")
    shared = {**SMALL, "data_dir": str(whole), "partition": "iid", "global_rounds": 2}
    folders = [tmp_path / name for name in ("north", "east", "south", "west")]
    told = cut(whole, config_of(**shared), lambda client: folders[client])
    shutil.copytree(whole / "test", tmp_path / "server" / "test")
    config = config_of(**shared | told | {"data_dir": str(tmp_path / "server"), "partition": "own"})
    named = run(config, engine_with(config, folders), LogProgress(), tmp_path / "results")
    assert same_weights(named, run_app(tmp_path / "1", **shared))


def test_nodes_of_one_process_have_the_folders_that_their_configs_name(tmp_path):
    root = own_folders(tmp_path)
    shutil.rmtree(root / "3/train/bee")
    config = config_of(**OWN, data_dir=str(root), wait_for_nodes=0)
    folders = [root / str(client) for client in range(4)]
    sizes = [[p.num_train_examples for p in gathered(config, order)] for order in (folders, folders[::-1])]
    assert sizes == [[15, 15, 15, 10], [10, 15, 15, 15]]


def test_a_client_may_lack_classes(tmp_path):
    root = own_folders(tmp_path / "images")
    shutil.rmtree(root / "1/train/bee")
    shutil.rmtree(root / "1/test/ant")
    for file in (root / "2/train/cow").iterdir():
        file.unlink()
    config = config_of(**OWN, data_dir=str(root), wait_for_nodes=0)
    profiles = gathered(config, [root / str(i) for i in range(4)])
    assert [p.class_counts for p in profiles] == [(5, 5, 5), (5, 0, 5), (5, 5, 0), (5, 5, 5)]
    assert [p.num_test_examples for p in profiles] == [6, 4, 6, 6]
    folder = run_app(tmp_path / "run", **OWN, data_dir=str(root))
    assert summary(folder)["failures"] == 0
    assert len(lines(folder, "global")[-1]["clients"]) == 4


def without_tests(root, *clients):
    for client in clients:
        shutil.rmtree(root / str(client) / "test")


@pytest.mark.parametrize(
    ("algorithm", "untested"), [("phsfl", (1,)), ("h-fedavg", (0, 1))], ids=["one client", "a whole edge"]
)
def test_clients_without_test_images_train_and_count_in_no_average(tmp_path, algorithm, untested):
    root = own_folders(tmp_path / "images")
    whole = run_app(tmp_path / "whole", **OWN, data_dir=str(root), algorithm=algorithm)
    without_tests(root, *untested)
    folder = run_app(tmp_path / "run", **OWN, data_dir=str(root), algorithm=algorithm)
    assert same_weights(whole, folder)
    line = lines(folder, "global")[-1]
    assert sorted(line["clients"]) == [str(i) for i in range(4) if i not in untested]
    for key in ("accuracy", "loss"):
        assert line[key]["mean"] == fmean(own[key] for own in line["clients"].values())
        assert summary(folder)["global"][key] == line[key]
    assert summary(folder)["failures"] == 0
    assert summary(folder)["test"] == summary(whole)["test"]
    assert "NaN" not in (folder / "metrics.jsonl").read_text()
    rows = list(csv.DictReader((folder / "clients.csv").read_text().splitlines()))
    for i, row in enumerate(rows):
        assert (row["test_examples"], bool(row["accuracy"])) == (("0", False) if i in untested else ("6", True))
        if algorithm == "phsfl":
            assert bool(row["personalised_accuracy"]) == (i not in untested)


def test_where_no_client_has_test_images_the_servers_pool_is_left(tmp_path):
    root = own_folders(tmp_path / "images")
    expected = summary(run_app(tmp_path / "whole", **OWN, data_dir=str(root)))["test"]
    without_tests(root, *range(4))
    folder = run_app(tmp_path / "run", **OWN, data_dir=str(root))
    assert summary(folder)["test"] == expected
    assert summary(folder)["global"] == {"accuracy": None, "loss": None}
    assert summary(folder)["failures"] == 0


def add_class(root):
    (root / "2/test/emu").mkdir()


def add_class_at_the_server(root):
    (root / "test/emu").mkdir()


def lose_training_images(root):
    for file in (root / "2/train").rglob("*.png"):
        file.unlink()


def lose_training_pool(root):
    shutil.rmtree(root / "2/train")


def lose_client(root):
    shutil.rmtree(root / "2")


def lose_server_pool(root):
    shutil.rmtree(root / "test")


def damage(root):
    (root / "2/train/bee/03.png").write_bytes(b"damaged")


NAMES = "ant, bee, cow"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (add_class, f"2/test/emu: class 'emu' is not one of the run's: allowed are {NAMES}"),
        (add_class_at_the_server, f"test/emu: class 'emu' is not one of the run's: allowed are {NAMES}"),
        (lose_training_images, f"2/train: holds no images in folders named {NAMES}: allowed are files named *.png, "),
        (lose_training_pool, f"2/train: holds no images in folders named {NAMES}: "),
        (lose_client, "2: no such folder: allowed is a folder with train/<class>/* and test/<class>/*"),
        (lose_server_pool, f"test: holds no images in folders named {NAMES}: "),
        (damage, "2/train/bee/03.png: cannot be read as an image ("),
    ],
)
def test_bad_folders_are_one_line_before_training(tmp_path, capsys, change, message):
    root = own_folders(tmp_path / "images")
    change(root)
    settings = {**OWN, "data_dir": str(root), "output_dir": str(tmp_path / "run")}
    arguments = [f"{key_of(key)}={json.dumps(value)}" for key, value in settings.items()]
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: {root}/{message}")
    assert error.count("\n") == 1
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("folder", ["images/north", "5", "~nobody-of-that-name/images"])
def test_a_node_that_names_a_relative_path_is_told_in_one_line(tmp_path, caplog, folder):
    root = own_folders(tmp_path / "images")
    config = config_of(**OWN, data_dir=str(root), wait_for_nodes=0)
    folders = [root / "0", folder, root / "2", root / "3"]
    with pytest.raises(UserError, match=r"^no profile from clients \[1\]: the log says what they failed on$"):
        gathered(config, folders)
    (line,) = [record.getMessage() for record in caplog.records]
    assert f"data-dir = '{folder}' in the node's config: allowed is an absolute path" in line


def test_a_home_folder_in_a_nodes_config_is_expanded(tmp_path, monkeypatch):
    root = own_folders(tmp_path / "images", 1)
    monkeypatch.setenv("HOME", str(root))
    config = config_of(**OWN | {"num_clients": 1, "num_edges": 1}, data_dir=str(root))
    (profile,) = gathered(config, ["~/0"])
    assert profile.num_train_examples == 15


@pytest.mark.parametrize(
    ("settings", "parts"),
    [
        ({"partition": "iid"}, ["data.classes = 'ant,bee,cow'", "allowed is ''", "partition = 'iid'"]),
        ({"partition": "iid", "classes": ""}, ["data.pixel-mean = '0.5,0.5,0.5'", "allowed is ''"]),
        ({"partition": "iid", "classes": "", "pixel_mean": ""}, ["data.pixel-std = '0.25,0.25,0.3'", "allowed is ''"]),
        ({"dataset": "cifar10"}, ["partition = 'own'", "dataset = 'cifar10'", "image-folder"]),
        ({"dataset": "video-caching", "model": "auto"}, ["partition = 'own'", "dataset = 'video-caching'"]),
        ({"algorithm": "centralised"}, ["algorithm = 'centralised'", "partition = 'own'"]),
        ({"image_size": 0}, ["data.image-size = 0", "1 or more", "partition = 'own'"]),
        ({"classes": ""}, ["data.classes = ''", "'cat,dog'"]),
        ({"classes": "ant,,cow"}, ["data.classes = 'ant,,cow'", "'cat,dog'"]),
        ({"classes": "ant,bee,ant"}, ["data.classes = 'ant,bee,ant'", "each once"]),
        ({"classes": "ant,.bee"}, ["data.classes = 'ant,.bee'"]),
        ({"classes": "ant,../bee"}, ["data.classes = 'ant,../bee'"]),
        ({"pixel_mean": ""}, ["data.pixel-mean = ''", "'0.5,0.5,0.5'"]),
        ({"pixel_mean": "0.5"}, ["data.pixel-mean = '0.5'", "red, green and blue"]),
        ({"pixel_mean": "0.5,nan,0.5"}, ["data.pixel-mean = '0.5,nan,0.5'", "0 to 1"]),
        ({"pixel_mean": "124,116,104"}, ["data.pixel-mean = '124,116,104'", "0 to 1"]),
        ({"pixel_std": "0.5,0,0.5"}, ["data.pixel-std = '0.5,0,0.5'", "1e-06 to 1"]),
        ({"pixel_std": "0.5,x,0.5"}, ["data.pixel-std = '0.5,x,0.5'"]),
        ({"data_dir": ""}, ["data-dir = ''", "image-folder"]),
    ],
)
def test_settings_that_do_not_go_together_are_one_line(settings, parts):
    with pytest.raises(UserError) as caught:
        config_of(**{**OWN, "data_dir": "/images", **settings})
    assert [part for part in parts if part not in str(caught.value)] == []
    assert "\n" not in str(caught.value)


def test_a_run_is_resumed_on_the_same_test_pool_and_refused_on_another(tmp_path, capsys):
    root = own_folders(tmp_path / "images")
    whole = run_app(tmp_path / "whole", **OWN, data_dir=str(root), global_rounds=2)
    folder = run_app(tmp_path / "run", **OWN, data_dir=str(root), global_rounds=1)
    assert main([f"resume={folder}", "global-rounds=2"]) == 0
    assert same_weights(whole, folder)
    other = tmp_path / "other"
    shutil.copytree(root, other)
    Image.new("RGB", (8, 8), (1, 2, 3)).save(other / "test/bee/00.png")
    capsys.readouterr()
    assert main([f"resume={folder}", f"data-dir={other}", "global-rounds=3"]) == 2
    assert f"data-dir = '{other}': allowed is the data of the run to resume" in capsys.readouterr().err


def test_the_model_comes_from_the_settings_without_any_data():
    config = config_of(**OWN, data_dir="/no/such/folder")
    task = build_task(config)
    assert task.example_input().shape == (1, 3, 8, 8)
    assert task.new_model()[-1].out_features == 3
    assert not Path("/no/such/folder").exists()
