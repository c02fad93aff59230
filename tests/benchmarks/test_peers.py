"""The settings of other simulators' benchmarks run, and what they are compared with does the same."""

import pytest

from benchmarks.peers import SETTINGS, measure, ways_on
from espalier.app.config.parse import parse_config
from espalier.app.config.unused import unused_keys
from espalier.app.wiring.clients import why_in_turn
from espalier.app.wiring.task_of_run import build_task

# The images of each client, and the settings, for something that takes a moment.
FEWER = {
    "pfl-research, CIFAR-10": ("images=50", {"num-clients": 40}),
    "BlazeFL, CNN": ("images=500", {"num-clients": 3}),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_a_setting_runs_one_after_the_other_and_side_by_side(name):
    values, _ = SETTINGS[name]
    images, fewer = FEWER[name]
    task = values["task"].replace(images, "images=10")
    found = measure({**values, **fewer, "task": task, "local-epochs": 1, "batch-size": 5}, ways_on("cpu", 2), 1)
    assert list(found) == ["one after the other", "in threads", "2 side by side", "bare loop"]
    assert all(
        one.steps_per_second > 0 and one.seconds > 0 and one.ratio > 0 and one.cpu_ratio > 0 for one in found.values()
    )
    assert found["bare loop"].ratio == found["bare loop"].cpu_ratio == 1
    assert why_in_turn(parse_config(values).as_dict()) == ""
    assert found["one after the other"].difference < 1e-7
    assert found["in threads"].difference == found["one after the other"].difference
    assert found["2 side by side"].difference < 1e-5


def test_on_a_gpu_gradients_are_recorded_and_no_stack_has_dropout():
    assert ways_on("cuda", None) == {"one after the other": {"workers": 1}, "recorded": {"train.cuda-graph": True}}
    assert ways_on("cuda", 100)["100 side by side"] == {"stack": 100}
    assert {name: stacks.get("cuda") for name, (_, stacks) in SETTINGS.items()} == {
        "pfl-research, CIFAR-10": None,
        "BlazeFL, CNN": 100,
    }


@pytest.mark.parametrize(
    ("name", "images", "clients", "steps", "weights"),
    [
        ("pfl-research, CIFAR-10", 50, 50, 5, 1_626_442),
        ("BlazeFL, CNN", 500, 100, 50, 62_006),
    ],
)
def test_the_settings_are_those_that_were_published(name, images, clients, steps, weights):
    values, stacks = SETTINGS[name]
    config = parse_config({**values, "stack": stacks["cpu"]})
    assert unused_keys(config) == {}
    assert config.federation.num_clients * images == 50_000
    assert config.federation.num_clients * config.federation.participation == clients
    task = build_task(config)
    assert len(task.client_examples(0)[0]) == images
    assert task.training.num_steps(images) == steps
    assert sum(parameter.numel() for parameter in task.new_model().parameters()) == weights
