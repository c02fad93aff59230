"""A run goes on to the same bits from whatever a power cut leaves of its folder."""

import json
import os

import pytest

from espalier.app.command_line import main
from tests.app.disk import Disk, Recorder, images_after_power_cuts
from tests.app.runs import lines, run_app, same_weights, summary

# The model has 129 weights. Both tiers hold state.
SMALL = {
    "task": "tests.app.own_tasks:Points",
    "num_clients": 2,
    "num_edges": 2,
    "edge_rounds": 1,
    "local_epochs": 1,
    "batches_per_epoch": 1,
    "cloud_strategy": "FedAdam(eta=0.05)",
    "edge_strategy": "FedAvgM(server_momentum=0.5, server_learning_rate=0.9)",
    "validation_share": 0.3,
}


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """Return the file operations of a run, and of its resumption for another round."""
    recorder = Recorder(tmp_path_factory.mktemp("disk"))
    with pytest.MonkeyPatch.context() as patch:
        recorder.record(patch)
        folder = run_app(recorder.root / "results/run", global_rounds=1, **SMALL)
        assert main([f"resume={folder}", "global-rounds=2"]) == 0
    return recorder.operations


def figures(folder):
    return [
        {key: value for key, value in line.items() if "seconds" not in key}
        for scope in ("edge", "global")
        for line in lines(folder, scope)
    ]


def test_every_image_is_resumed_to_the_same_bits_or_begun_anew(recorded, tmp_path, capsys):
    whole = run_app(tmp_path / "whole", global_rounds=2, **SMALL)
    capsys.readouterr()
    begun, resumed = 0, 0
    for number, image in enumerate(images_after_power_cuts(recorded)):
        root = tmp_path / "images" / str(number)
        for name, content in image.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_bytes(content)
        folder = root / "results/run"
        code = main([f"resume={folder}", "global-rounds=2"])
        error = capsys.readouterr().err
        if (folder / "config.json").exists():
            assert (code, error) == (0, ""), sorted(image)
            resumed += 1
        else:
            assert code == 2
            assert error.count("\n") == 1
            run_app(folder, global_rounds=2, **SMALL)
            begun += 1
        assert same_weights(folder, whole)
        assert figures(folder) == figures(whole)
        assert (folder / "best-model.pt").read_bytes() == (whole / "best-model.pt").read_bytes()
        assert summary(folder)["best"] == summary(whole)["best"]
    assert begun >= 2
    assert resumed >= 15


def test_what_is_over_is_on_the_disk(recorded):
    disk = Disk()
    for operation in recorded:
        disk.do(*operation)
    left = list(disk.images())
    of_the_run = {"clients.csv", "partition.csv", "best-model.pt", "model.pt", "round-0.json", "made-by.json"}
    of_what_can_be_resumed = {"config.json", "metrics.jsonl", "seconds.jsonl", "state.npz", "summary.json"}
    assert left[0].keys() == {f"results/run/{name}" for name in of_the_run | of_what_can_be_resumed}
    assert left == [left[0]] * len(left)


def test_the_replay_would_notice_what_is_not_synced(recorded):
    def is_whole(name, content):
        if name.endswith(".json"):
            try:
                json.loads(content)
            except ValueError:
                return False
        return not name.endswith(".npz") or content.startswith(b"PK")

    def damaged(operations):
        images = images_after_power_cuts(operations)
        return {os.path.basename(n) for image in images for n, content in image.items() if not is_whole(n, content)}

    assert damaged(recorded) == set()
    careless = [operation for operation in recorded if operation[0] != "sync"]
    assert damaged(careless) == {"config.json", "made-by.json", "round-0.json", "state.npz", "summary.json"}


def test_images_of_a_file_whose_name_is_synced_late():
    created = [("create", "a", 0), ("write", 0, 0, b"1234"), ("sync", 0)]
    contents = [b"", b"\0\0\0\0", b"12", b"1234"]
    assert list(images_after_power_cuts(created)) == [{}, *({"a": content} for content in contents)]
    *_, zeros, half, whole = images_after_power_cuts([*created, ("sync folder", "."), ("write", 0, 4, b"56")])
    assert (zeros, half, whole) == ({"a": b"1234\0\0"}, {"a": b"12345"}, {"a": b"123456"})
