"""Labels at every place, time first and lengths: split training is training of the whole model."""

import json

import pytest
import torch

from espalier.app.command_line import main
from espalier.app.config.parse import parse_config
from espalier.app.tasks.node import ClientNode
from espalier.app.wiring.task_of_run import build_task
from espalier.clients.whole.training import local_sgd
from tests.app.runs import key_of, lines, run_app, same_weights, summary, weights

FORMS = ["rows", "time", "lengths", "both"]
# A mini-batch of as many texts as there are places: sizes alone do not tell which axis is time.
SMALL = {"num_clients": 3, "num_edges": 1, "edge_rounds": 1, "batch_size": 6, "local_epochs": 1, "learning_rate": 0.3}
SMALL |= {"batches_per_epoch": 0, "fine_tune_steps": 2, "global_rounds": 2}


def settings_of(passes, more="", **settings):
    return {"task": f"tests.app.sequence_tasks:Tagger(passes={passes!r}{more})"} | SMALL | settings


def run(folder, passes, more="", **settings):
    """Run the task; nobody may be left out of anything."""
    folder = run_app(folder, **settings_of(passes, more, **settings))
    assert summary(folder)["failures"] == 0
    assert list(lines(folder, "global")[-1]["clients"]) == ["0", "1", "2"]
    return folder


def assert_same(split, whole, atol=1e-12):
    assert weights(split).keys() == weights(whole).keys()
    for name, values in weights(whole).items():
        torch.testing.assert_close(weights(split)[name], values, rtol=0, atol=atol)
    assert summary(split)["test"] == pytest.approx(summary(whole)["test"], abs=1e-9)
    left, right = (lines(folder, "edge")[-1]["train_loss"] for folder in (split, whole))
    assert left == pytest.approx(right, abs=1e-9)


@pytest.mark.parametrize("passes", FORMS)
def test_sfl_v1_and_hsfl_are_training_of_the_whole_model(tmp_path, passes):
    whole = run(tmp_path / "whole", passes, algorithm="h-fedavg")
    first, last = (line["loss"]["mean"] for line in lines(whole, "global"))
    assert last < first - 0.003
    assert_same(run(tmp_path / "hsfl", passes, algorithm="hsfl", cut_layer="1,2,3"), whole)
    flat = run(tmp_path / "fedavg", passes, algorithm="fedavg", global_rounds=1)
    assert_same(run(tmp_path / "v1", passes, algorithm="sfl-v1", cut_layer=2, global_rounds=1), flat)


@pytest.mark.parametrize("passes", FORMS)
def test_phsfl_is_training_of_the_whole_model_but_for_its_head(tmp_path, passes):
    whole = run(tmp_path / "whole", passes, ", frozen=True", algorithm="h-fedavg")
    split = run(tmp_path / "split", passes, algorithm="phsfl", cut_layer="1,2")
    assert_same(split, whole)
    personal, last = (lines(split, scope)[-1]["loss"]["mean"] for scope in ("personalised", "global"))
    assert personal < last  # heads are fine-tuned on such activations, too


@pytest.mark.parametrize("algorithm", ["sl", "sfl-v2"])
@pytest.mark.parametrize("passes", FORMS)
def test_sl_and_sfl_v2_are_training_of_whole_models_in_turn(tmp_path, passes, algorithm):
    settings = settings_of(passes, algorithm=algorithm, cut_layer=2, server_order="in-client-order")
    split = run(tmp_path / "split", passes, **{k: v for k, v in settings.items() if k not in ("task", *SMALL)})
    task = build_task(parse_config({key_of(k): v for k, v in settings.items()}))
    model, counts = task.new_model(), [10 + 4 * client - 2 for client in range(3)]
    now = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    for server_round in (1, 2):
        before, fronts = now, []
        for client in range(3):
            own = task.new_client_task(model, ClientNode(client))
            start = before if algorithm == "sfl-v2" else now  # of the client's blocks
            model.load_state_dict(now | {n: start[n] for n in now if n.startswith(("words", "past"))})
            local_sgd(own, server_round)
            now = {name: tensor.clone() for name, tensor in model.state_dict().items()}
            fronts.append({name: tensor for name, tensor in now.items() if name.startswith(("words", "past"))})
            assert len(own.train) == counts[client]
        if algorithm == "sfl-v2":
            shares = [count / sum(counts) for count in counts]
            now |= {n: sum(s * front[n] for s, front in zip(shares, fronts, strict=True)) for n in fronts[0]}
    for name, values in now.items():
        torch.testing.assert_close(weights(split)[name], values, rtol=0, atol=1e-12)


@pytest.mark.parametrize("passes", ["time", "both"])
def test_messages_and_streams_carry_the_same(tmp_path, passes):
    settings = {"algorithm": "phsfl", "cut_layer": "1,2", "label_policy": "labels", "global_rounds": 1}
    fused = run(tmp_path / "fused", passes, **settings)
    for number, way in enumerate(({"split_execution": "messages"}, {"split_transport": "stream"})):
        other = run(tmp_path / f"{number}", passes, **settings | way)
        assert same_weights(fused, other)
        assert summary(fused)["personalised"] == summary(other)["personalised"]
    # 6 labels and, where lengths are passed on, one length of 4 bytes each for 8, 12 and 16 texts.
    sent = summary(other)["bytes_by_kind"]["edge"]["uplink"]
    assert sent["labels"] == 36 * 6 * 4
    assert sent.get("lengths", 0) == (36 * 4 if passes == "both" else 0)
    assert sent["activations"] == 6 * 8 * (3 * (8 + 16) + 5 * 12)


def test_a_tail_on_the_device_takes_time_first_and_lengths_end_before_it(tmp_path, capsys):
    whole = run(tmp_path / "whole", "time", algorithm="h-fedavg", global_rounds=1)
    split = run(tmp_path / "split", "time", algorithm="hsfl", cut_layer=1, tail_layer="again", global_rounds=1)
    assert_same(split, whole)
    whole = run(tmp_path / "both", "both", algorithm="h-fedavg", global_rounds=1)
    assert_same(run(tmp_path / "head", "both", algorithm="hsfl", tail_layer="head", global_rounds=1), whole)
    settings = settings_of("lengths", algorithm="hsfl", tail_layer="again", output_dir=str(tmp_path / "refused"))
    assert main([f"{key_of(k)}={json.dumps(v)}" for k, v in settings.items()]) == 2
    assert "blocks in front of a tail pass on a tensor, and no lengths" in capsys.readouterr().err


def test_it_is_resumed_to_the_same_bits_with_dropout(tmp_path):
    settings = {"algorithm": "hsfl", "cut_layer": "1,2", "optimizer": "adam", "learning_rate": 0.01}
    straight = run(tmp_path / "straight", "both", ", draws=True", **settings)
    folder = run(tmp_path / "run", "both", ", draws=True", **settings | {"global_rounds": 1})
    assert main([f"resume={folder}", "global-rounds=2"]) == 0
    assert same_weights(straight, folder)


@pytest.mark.parametrize(
    ("settings", "allowed"),
    [
        ({"algorithm": "cse-fsl"}, "allowed is a task with one label for each example"),
        (
            {"algorithm": "hsfl", "stack": 2},
            "allowed is 0 for this model",
        ),
    ],
)
def test_what_takes_one_label_or_rows_alone_is_refused_in_a_line(tmp_path, capsys, settings, allowed):
    task = {"task": "tests.app.sequence_tasks:Turned"}
    settings = settings_of("time", output_dir=str(tmp_path / "run"), **settings) | task
    assert main([f"{key_of(k)}={json.dumps(v)}" for k, v in settings.items()]) == 2
    error = capsys.readouterr().err
    assert allowed in error
    assert error.count("\n") == 1


def test_updates_of_parts_of_weights_are_read_by_messages_as_at_once(tmp_path):
    settings = SMALL | {"task": "tests.app.sequence_tasks:Cornered(rows=2)", "algorithm": "hsfl", "tail_layer": "head"}
    settings |= {"compress.client": "int8", "global_rounds": 1}
    folders = [run_app(tmp_path / how, **settings, **{"split.execution": how}) for how in ("fused", "messages")]
    assert [summary(folder)["replies_left_out"] for folder in folders] == [0, 0]
    assert same_weights(*folders)


@pytest.mark.parametrize(
    ("rows", "settings", "allowed"),
    [
        (5, {}, "allowed is one whose corner(0, 'head.weight', (4, 5)) is within that, not (5, 5)"),
        (2, {"stack": 2}, "allowed is 0 for a task whose clients have corners of weights"),
        (
            2,
            {"privacy_level": "client-at-edge", "privacy_noise": 1.0, "weighting": "equal"},
            "clients lack parts of weights",
        ),
        (2, {"algorithm": "sl"}, "algorithm = 'sl': allowed is one that averages, where clients have parts of weights"),
    ],
)
def test_parts_of_weights_that_do_not_go_are_refused_in_a_line(tmp_path, capsys, rows, settings, allowed):
    task = {"task": f"tests.app.sequence_tasks:Cornered(rows={rows})", "algorithm": "h-fedavg"}
    settings = SMALL | task | {"output_dir": str(tmp_path / "run")} | settings
    assert main([f"{key_of(k)}={json.dumps(v)}" for k, v in settings.items()]) == 2
    error = capsys.readouterr().err
    assert allowed in error
    assert error.count("\n") == 1
