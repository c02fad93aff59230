"""A user's mistake ends at once with one line, an exit code that is not 0 and nothing written."""

import json
import os
import shutil
import subprocess
import sys
from errno import ENOENT, ENOSPC
from pathlib import Path

import pytest
import torch
from flwr.serverapp.strategy import FedAvg

from espalier.app.command_line import main
from espalier.app.config.run_config import RunConfig
from espalier.app.reports.folder import ResultsFolder
from tests.app.pictures import image_folder
from tests.app.runs import run_app


def refused(arguments, capsys, tmp_path):
    """Return the one line that a command line is refused with."""
    output = tmp_path / "output"
    assert main([*arguments, f"output-dir={json.dumps(str(output))}"]) == 2
    line = capsys.readouterr().err
    assert line.count("\n") == 1
    assert "Traceback" not in line
    assert not output.exists()
    return line


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Make a run of two rounds."""
    return run_app(tmp_path_factory.mktemp("made") / "run")


@pytest.fixture
def folder(made, tmp_path):
    """Copy that run to where a test may damage it."""
    return Path(shutil.copytree(made, tmp_path / "run"))


def test_a_full_disk_is_named_and_what_is_anothers_fault_is_not_laid_on_it(tmp_path, monkeypatch, capsys):
    def full(self, lines):
        raise OSError(ENOSPC, "No space left on device")

    def lost(self, *what):
        raise FileNotFoundError(ENOENT, "No such file or directory", "/etc/own.cfg")

    arguments = ["num-clients=2", "batches-per-epoch=1", "global-rounds=1"]
    with monkeypatch.context() as patch:
        patch.setattr(ResultsFolder, "append_metrics", full)
        assert main([*arguments, f"output-dir={tmp_path / '1'}"]) == 2
    line = (
        f"{tmp_path / '1'}: can't be written ([Errno 28] No space left on device); the rounds that are over are saved"
    )
    assert line in capsys.readouterr().err
    monkeypatch.setattr(FedAvg, "aggregate_train", lost)
    with pytest.raises(FileNotFoundError, match=r"/etc/own\.cfg"):
        main([*arguments, f"output-dir={tmp_path / '2'}"])


@pytest.mark.parametrize(
    ("argument", "parts"),
    [
        ("edge-round=2", ["'edge-round'", "did you mean 'edge-rounds'"]),
        ("seed=one", ["seed = 'one'", "integer"]),
        ("algorithm=fedsgd", ["algorithm = 'fedsgd'", "'fedavg', 'h-fedavg'"]),
        ("cloud-strategy=FedFoo", ["cloud-strategy = 'FedFoo'", "FedAdam"]),
        ("model=vgg", ["model = 'vgg'", "'resnet18'"]),
        ("model=cnn", ["model", "8x8", "small-cnn"]),
        ("dataset=imagenet", ["dataset = 'imagenet'", "'digits'"]),
        ("num-edges=9", ["num-edges = 9", "num-clients = 8"]),
        ("alpha=0", ["alpha = 0", "greater than 0"]),
        ("global-rounds=0", ["global-rounds = 0", "greater than 0"]),
        ("num-clients=1000", ["num-clients = 1000", "360", "test samples"]),
        ("data.image-size=8", ["data.image-size = 8", "digits"]),
        pytest.param(
            "device=cuda",
            ["device = 'cuda'", "'cpu' or 'auto'"],
            marks=pytest.mark.skipif(torch.cuda.is_available(), reason="here is a GPU"),
        ),
        ("engine=flower", ["engine = 'flower'", "flwr run ."]),
        ("resume=/no/such/folder", ["resume = '/no/such/folder'", "config.json"]),
        ("nonsense", ["'nonsense'", "KEY=VALUE"]),
        ("algorithm=sfl-v1 cut-layer=4", ["cut-layer = 4", "1 (after conv1), 2 (after conv2), 3 (after fc1)", "head"]),
        ("algorithm=hsfl cut-layer=0", ["cut-layer = 0", "1 (after conv1)"]),
        ("algorithm=hsfl cut-layer=1.5", ["cut-layer = 1.5", "an integer or a string"]),
        ("data.augmentation=crop,mirror", ["data.augmentation = 'crop,mirror'", "'crop,flip'"]),
        ("train.drop-last=yes", ["train.drop-last = 'yes'", "true or false"]),
        (
            "algorithm=sfl-v2 num-edges=2 edge-strategy=FedAdam",
            ["edge-strategy = 'FedAdam'", "sfl-v2 decides how edges train"],
        ),
        ("algorithm=feddyn edge-strategy=FedProx(proximal_mu=0.1)", ["edge-strategy = 'FedProx", "feddyn draws"]),
        ("algorithm=hsfl edge-strategy=FedMedian(min_train_nodes=9)", ["edge 'edge-0' has 4 node(s)", "needs 9"]),
        ("guard.mode=harsh", ["guard.mode = 'harsh'", "leave-out"]),
        ("guard.update-norm=0.5", ["guard.update-norm = 0.5"]),
        ("algorithm=sfl-v1 cloud-strategy=FedAdam", ["cloud-strategy = 'FedAdam'", "num-edges = 2 or more"]),
        ("algorithm=sl num-edges=2 cloud-strategy=FedProx", ["cloud-strategy = 'FedProx", "share the server's block"]),
        ("algorithm=hsfl tail-layer=1", ["tail-layer = 1", "2 (fc1), 3 (head), 'none'"]),
        ("algorithm=hsfl tail-layer=4", ["tail-layer = 4", "2 (fc1), 3 (head), 'none'"]),
        ("algorithm=sl tail-layer=tail", ["tail-layer = 'tail'", "2 (fc1), 3 (head), 'none'"]),
        ("algorithm=sl tail-layer=1.5", ["tail-layer = 1.5", "the name of a block, a number of blocks, or 'none'"]),
        ("algorithm=hsfl cut-layer=1,3 tail-layer=fc1", ["cut-layer = '1,3'", "1 (after conv1): the tail begins with"]),
        (
            "algorithm=hsfl cut-layer=1,x",
            ["cut-layer = '1,x'", "2 (after conv2)", "the blocks are conv1, conv2, fc1, head"],
        ),
        ("algorithm=hsfl cut-layer=1,x-y", ["cut-layer = '1,x-y'", "'1,2,4'"]),
        ("algorithm=hsfl cut-layer=head", ["cut-layer = 'head'", "3 (after fc1)", "the head"]),
        ("seed=0,1", ["seed = '0,1'", "; for several runs type: espalier sweep seed=0,1"]),
        ("algorithm=sl,hsfl", ["algorithm = 'sl,hsfl'", "; for several runs type: espalier sweep algorithm=sl,hsfl"]),
        ("dataset=digits,cifar10", ["; for several runs type: espalier sweep dataset=digits,cifar10"]),
        (
            "cloud-strategy=FedAvg,FedMedian",
            ["; for several runs type: espalier sweep cloud-strategy=FedAvg,FedMedian"],
        ),
        ("lr=0.1", ["unknown key 'lr': did you mean 'learning-rate', "]),
        ("algorithm=sfl-v2 cut-layer=1,2", ["cut-layer = '1,2'", "one cut for all clients", "sfl-v2"]),
        ("algorithm=phsfl fine-tune.steps=-1", ["fine-tune.steps = -1", "greater than or equal to 0"]),
        ("split.label-policy=hidden", ["split.label-policy = 'hidden'", "'indices' or 'labels'"]),
        ("model=resnet18", ["model = 'resnet18'", "8x8", "small-cnn"]),
        ("edge-strategy=FedAvg(min_available_nodes=5)", ["edge 'edge-0' has 4 node(s)", "needs 5", "edge-strategy"]),
        ("cloud-strategy=FedAvg(min_train_nodes=3)", ["the cloud has 2 edge(s)", "needs 3", "cloud-strategy"]),
        (
            "cloud-strategy=Bulyan",
            ["cloud-strategy = 'Bulyan'", "more edges: Bulyan needs the replies of 3, there are"],
        ),
        (
            "edge-strategy=Bulyan(num_malicious_nodes=1)",
            ["edge-strategy", "or more clients of an edge: Bulyan needs the replies of 7, there are 4"],
        ),
        (
            "algorithm=scaffold edge-strategy=Bulyan(num_malicious_nodes=2)",
            ["edge-strategy", "or more clients: Bulyan needs the replies of 11, there are 8"],
        ),
        (
            "algorithm=fedavg cloud-strategy=Bulyan participation=0.25",
            ["cloud-strategy = 'Bulyan'", "more clients in a round: Bulyan needs the replies of 3, there are 2"],
        ),
        (
            "algorithm=local num-edges=2 cloud-strategy=FedAdam",
            ["cloud-strategy = 'FedAdam'", "'FedAvg': local averages nothing"],
        ),
        ("edge-strategy=MultiKrum(num_nodes_to_select=0)", ["an integer >= 1 for num_nodes_to_select"]),
        (
            "algorithm=scaffold cloud-strategy=FedAdam",
            ["cloud-strategy = 'FedAdam'", "scaffold without edges averages by edge-strategy alone"],
        ),
        ("edge-strategy=FedAvg(fraction_train=2.0)", ["fraction_train", "<= 1"]),
        ("edge-strategy=QFedAvg(client_learning_rate=0)", ["client_learning_rate", "> 0"]),
        ("edge-strategy=FedAvg(weighted_by_key='n')", ["a parameter of FedAvg"]),
    ],
)
def test_bad_values(argument, parts, capsys, tmp_path):
    line = refused(argument.split(" "), capsys, tmp_path)
    assert [part for part in parts if part not in line] == []


def break_nothing(root):
    pass


def empty(root):
    for file in root.rglob("*.png"):
        file.unlink()


def damage(root):
    file = root / "train" / "dog" / "03.png"
    file.write_bytes(file.read_bytes()[:60])


def lose(root):
    os.rename(root / "train", root / "elsewhere")


@pytest.mark.parametrize(
    ("classes", "change", "parts"),
    [
        (("cat", "dog", "cow"), break_nothing, ["cow", "train"]),
        (("cat", "dog"), empty, ["train", "image"]),
        (("cat", "dog"), damage, [os.path.join("dog", "03.png")]),
        (("cat", "dog"), lose, ["train"]),
    ],
    ids=["class only in test", "empty", "damaged image", "no train"],
)
def test_bad_image_folders(classes, change, parts, capsys, tmp_path):
    root = image_folder(tmp_path / "images", test=classes)
    change(root)
    line = refused(["dataset=image-folder", f"data-dir={json.dumps(str(root))}", "num-clients=2"], capsys, tmp_path)
    assert [part for part in [*parts, str(root)] if part not in line] == []


def test_a_data_folder_that_is_missing(capsys, tmp_path):
    line = refused(["dataset=image-folder", "data-dir=/no/such/data"], capsys, tmp_path)
    assert "/no/such/data" in line


def test_an_output_folder_that_cannot_be_written(capsys, tmp_path):
    (tmp_path / "file").write_text("in the way")
    assert main([f'output-dir="{tmp_path}/file/run"']) == 2
    line = capsys.readouterr().err
    assert line.count("\n") == 1
    assert f"output-dir = '{tmp_path}/file/run'" in line


def test_a_folder_that_holds_anything_is_not_written_to(capsys, tmp_path, folder):
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "metrics.jsonl").write_text("x")
    capsys.readouterr()
    for path in (folder, tmp_path / "other"):
        before = {p.name: p.stat().st_mtime_ns for p in path.iterdir()}
        assert main([f'output-dir="{path}"']) == 2
        captured = capsys.readouterr()
        assert "a new or empty folder" in captured.err
        assert "joined" not in captured.out  # before anybody is waited for
        assert {p.name: p.stat().st_mtime_ns for p in path.iterdir()} == before


@pytest.mark.parametrize("settings", [[], ["selection=resource-aware"], ["availability.mode=markov"]], ids=str)
def test_a_run_in_which_nobody_trained_says_so(capsys, tmp_path, settings):
    short = ["global-rounds=2", "num-clients=2", "num-edges=1", "batches-per-epoch=2", *settings]
    assert main(["learning-rate=1e30", *short, f'output-dir="{tmp_path / "run"}"']) == 2
    line = capsys.readouterr().err
    assert line.count("\n") == 1
    assert "no client trained in any round" in line


CONFIG = json.dumps(RunConfig().as_dict() | {"alpha": "x"})


@pytest.mark.parametrize(
    ("file", "content", "part"),
    [
        ("metrics.jsonl", "", "metrics.jsonl: lacks rounds"),
        ("metrics.jsonl", '{"x": 1}\n{"round": 1, "scope": "edge"}\n', "metrics.jsonl: line 1 is damaged"),
        ("metrics.jsonl", "[1]\n[2]\n", "metrics.jsonl: line 1 is damaged"),
        ("state.npz", "", "state.npz: is damaged"),
        ("config.json", "null", "config.json: is damaged"),
        ("config.json", '{"alpha": 0.5}', "config.json: lacks 'algorithm'"),
        ("config.json", CONFIG, "config.json: alpha = 'x'"),
    ],
)
def test_damaged_folders_are_not_resumed(file, content, part, capsys, folder):
    (folder / file).write_text(content)
    capsys.readouterr()
    assert main([f"resume={folder}", "global-rounds=3"]) == 2
    line = capsys.readouterr().err
    assert line.count("\n") == 1
    assert part in line
    assert (folder / file).read_text() == content


@pytest.mark.parametrize("file", ["metrics.jsonl", "state.npz", "config.json"])
def test_files_that_can_not_be_read_are_named(file, capsys, folder):
    (folder / file).unlink()
    (folder / file).mkdir()  # which nobody can read as a file, whatever the rights
    capsys.readouterr()
    assert main([f"resume={folder}", "global-rounds=3"]) == 2
    line = capsys.readouterr().err
    assert line.count("\n") == 1
    assert str(folder) in line
    assert "Is a directory" in line


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is forbidden to root")
@pytest.mark.parametrize("mode", [0o000, 0o500])
def test_a_folder_of_another_user_is_neither_resumed_nor_written_to(mode, capsys, folder):
    folder.chmod(mode)
    capsys.readouterr()
    for argument in (f"resume={folder}", f"output-dir={folder / 'new'}"):
        assert main([argument]) == 2
        line = capsys.readouterr().err
        assert line.count("\n") == 1
        assert str(folder) in line
    folder.chmod(0o700)


def test_images_that_can_not_fit_are_refused_before_any_is_decoded(capsys, tmp_path):
    root = image_folder(tmp_path / "images")
    (root / "train" / "dog" / "03.png").write_bytes(b"no image")
    size = ["dataset=image-folder", f"data-dir={root}", "num-clients=2", "data.image-size=4096"]
    line = refused([*size, "batch-size=1024"], capsys, tmp_path)
    # Two classes of 12 images to train on, and as many to test on, of which the server has a copy too.
    assert f"images {(24 + 2 * 24) * 4096 * 4096 * 3:,}" in line
    # Max-pooling by 4 x 4 of 64 channels of float32.
    assert f"a mini-batch {1024 * (64 + 64 // 16) * 4096 * 4096 * 4:,}" in line
    assert "03.png" in refused([*size[:-1], "data.image-size=16"], capsys, tmp_path)


def test_resuming_a_run_of_another_config(capsys, folder):
    capsys.readouterr()
    assert main([f'resume="{folder}"', "alpha=0.9"]) == 2
    line = capsys.readouterr().err
    assert line.count("\n") == 1
    assert "alpha = 0.9: allowed is 0.5" in line
    assert str(folder) in line


def test_the_command_itself_exits_with_the_code_and_the_line(tmp_path):
    here = tmp_path / "here"
    here.mkdir()
    done = subprocess.run(
        [sys.executable, "-m", "espalier.app", "alpha=0"], capture_output=True, text=True, check=False, cwd=here
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "error: alpha = 0: allowed is greater than 0\n"
    assert list(here.iterdir()) == []
