"""A model of a user's own with data that come with the app."""

import json

import pytest
import torch

from espalier.app.command_line import main
from espalier.app.reports.saved import own_code, saved_config
from espalier.app.tasks.models import build_model
from tests.app.own_folders import OWN, noise_folder, own_folders
from tests.app.own_folders import SMALL as FOLDERS
from tests.app.runs import run_app, same_weights, weights

HERE = "tests.app.own_models"
SMALL = {"num_clients": 4, "edge_rounds": 1, "local_epochs": 1, "batches_per_epoch": 2, "global_rounds": 1}


def own(name):
    return f"{HERE}:{name}"


@pytest.mark.parametrize(
    "settings",
    [
        {"algorithm": "h-fedavg"},
        {"algorithm": "fedavg", "stack": 4},
        {"algorithm": "centralised"},
        {"algorithm": "rawhfl"},
        {"algorithm": "phsfl", "cut_layer": 2, "tail_layer": "head"},
        {"algorithm": "hsfl", "cut_layer": "1,3", "stack": 4},
        {"algorithm": "sfl-v2", "split.transport": "stream"},
    ],
    ids=str,
)
def test_a_model_of_ones_own_trains_to_the_bits_of_the_built_in_one_that_it_copies(tmp_path, settings):
    built_in = run_app(tmp_path / "built-in", **SMALL, **settings, model="small-cnn")
    written = run_app(tmp_path / "own", **SMALL, **settings, model=own("small_cnn"))
    assert same_weights(built_in, written)
    assert (built_in / "metrics.jsonl").exists()


@pytest.mark.parametrize("algorithm", ["fedavg", "hsfl"])
def test_clients_side_by_side_drop_the_units_of_images_that_each_drops_alone(tmp_path, algorithm):
    settings = {**SMALL, "algorithm": algorithm, "model": own("dropping")}
    alone, stacked = (weights(run_app(tmp_path / str(n), **settings, stack=n)) for n in (0, 4))
    for name, values in alone.items():
        torch.testing.assert_close(stacked[name], values, rtol=0, atol=1e-6)


@pytest.mark.parametrize("algorithm", ["h-fedavg", "h-fedavg-m2", "rawhfl"])
def test_truth_values_of_a_model_are_those_that_most_clients_have(tmp_path, algorithm):
    settings = SMALL | {"algorithm": algorithm, "model": own("masked"), "num_edges": 2}
    trained = weights(run_app(tmp_path / "run", **settings, selected_per_edge=2))
    assert trained["mask"].all()
    assert trained["trained"]


def test_any_module_trains_whole_and_its_name_is_kept_with_its_arguments(tmp_path):
    folder = run_app(tmp_path / "run", **SMALL, model=own("linear(outputs=10)"))
    assert {name: tuple(w.shape) for name, w in weights(folder).items()} == {
        "head.weight": (10, 64),
        "head.bias": (10,),
    }
    about = json.loads((folder / "data.json").read_text())
    assert about["model"] == own("linear(outputs=10)")
    again = build_model(about["model"], image_shape=about["image_shape"], num_classes=10, seed=0)
    again.load_state_dict(weights(folder))
    assert own_code(saved_config(folder)) == {"model": own("linear(outputs=10)")}


def test_the_seed_decides_its_weights_and_the_generator_is_left_alone():
    before = torch.random.get_rng_state()
    first, same, other = (
        build_model(own("linear"), image_shape=(1, 8, 8), num_classes=10, seed=seed).state_dict() for seed in (1, 1, 2)
    )
    assert torch.equal(before, torch.random.get_rng_state())
    assert torch.equal(first["head.weight"], same["head.weight"])
    assert not torch.equal(first["head.weight"], other["head.weight"])


@pytest.mark.parametrize(
    ("algorithm", "text", "message"),
    [
        ("fedavg", own("nothing"), "allowed is what can be imported (AttributeError: module "),
        ("fedavg", "no.such:net", "allowed is what can be imported (ModuleNotFoundError: No module named 'no')"),
        ("fedavg", "vgg", "allowed is 'auto', 'small-cnn', 'cnn', 'resnet18', 'resnet18-imagenet', 'resnet50', or"),
        (
            "fedavg",
            "small-cmn",
            "allowed is 'auto', 'small-cnn', 'cnn', 'resnet18', 'resnet18-imagenet', 'resnet50', or",
        ),
        ("fedavg", own("linear(3)"), "allowed is a name, or package.module:NAME(argument=value, ...) of your own"),
        ("fedavg", own("linear(outputs=7,outputs=10)"), "allowed is a name, or package.module:NAME(argument=value, "),
        ("fedavg", own("linear(size=3)"), "allowed is what takes input_shape, size and does not fail (TypeError: lin"),
        ("fedavg", own("failing"), "allowed is what takes num_classes and does not fail (RuntimeError: no such weig"),
        ("fedavg", own("constant"), "allowed is a function or a class, not a int"),
        ("fedavg", own("no_module"), "allowed is a function that returns an nn.Module, not a list"),
        ("fedavg", own("grey_alone"), "allowed is one whose model takes images of shape (1, 8, 8) (RuntimeError: Give"),
        ("fedavg", own("linear(outputs=7)"), "allowed is one whose model has 10 outputs for each image, a tensor of "),
        ("hsfl", own("linear(outputs=7)"), "allowed is one whose model has 10 outputs for each image, a tensor of sha"),
        ("fedavg", own("TwoOutputs"), "allowed is one whose model has 10 outputs for each image, a tensor of shape (N"),
        ("fedavg", own("Drawing"), "allowed is one whose model trains on its data (RuntimeError: one at a time, own_m"),
        (
            "hsfl",
            own("Whole"),
            "allowed is one whose model is an nn.Sequential of named blocks, the last one called",
        ),
    ],
)
def test_a_model_that_does_not_fit_is_one_line_before_training(tmp_path, capsys, algorithm, text, message):
    assert main([f"model={text}", f"algorithm={algorithm}", f"output-dir={tmp_path / 'run'}"]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: model = {text!r}: {message}")
    assert error.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_a_cut_in_front_of_which_nothing_trains_is_refused_for_that(tmp_path, capsys):
    model = own("with_frozen_front")
    assert main([f"model={model}", "algorithm=hsfl", "cut-layer=1", f"output-dir={tmp_path / 'run'}"]) == 2
    line = "cut-layer = 1: allowed is 2 (after body): nothing trains in front of body"
    assert capsys.readouterr().err == f"error: {line}\n"


@pytest.mark.parametrize("partition", ["iid", "own"])
def test_images_of_folders_have_models_of_ones_own_too(tmp_path, partition):
    folder = noise_folder(tmp_path / "data") if partition == "iid" else own_folders(tmp_path / "data")
    settings = {**(FOLDERS if partition == "iid" else OWN), "partition": partition, "data_dir": str(folder)}
    settings |= {**SMALL, "data.cache_dir": str(tmp_path / "cache"), "min_samples": 1}
    run = run_app(tmp_path / "run", **settings | {"model": own("linear(outputs=3)")})
    assert weights(run)["head.weight"].shape == (3, 3 * 8 * 8)
