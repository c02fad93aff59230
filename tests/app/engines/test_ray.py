"""Runs on Ray: the bits of one process, whatever the number of workers, and whoever of them dies."""

import gc
import json
import os
import re
import signal
import subprocess
import sys
import time
from tempfile import mkdtemp

import pytest
from ray.cluster_utils import Cluster

from espalier.app.command_line import main
from espalier.app.engines.ray_cluster import Machine, check_address, places_of
from espalier.app.ground.errors import UserError
from espalier.app.reports.progress import LogProgress
from espalier.app.run.run import engine_of, run
from tests.app.assembling import config_of
from tests.app.own_folders import OWN, own_folders
from tests.app.runs import lines, run_app, summary
from tests.app.tiers.test_served import same_runs

MORTAL = "tests.app.own_tasks:Mortal"
# 7 clients are not alike over 2, 3 or 4 workers.
SMALL = {"num_clients": 7, "batch_size": 8, "local_epochs": 1, "learning_rate": 0.1, "fine_tune_steps": 2}
TWO_TIERS = {"num_edges": 3}
STATEFUL = {
    "cloud_strategy": "FedAdam(eta=0.05)",
    "edge_strategy": "FedAvgM(server_momentum=0.5, server_learning_rate=0.9)",
    "participation": 0.7,
}
CASES = {
    "fedavg": {},
    "sfl-v1": {"optimizer": "adam"},
    "sfl-v2": {"momentum": 0.5, "server_momentum": 0.5},
    "sl": {},
    "h-fedavg": TWO_TIERS | STATEFUL,
    "phsfl": TWO_TIERS,
    "rawhfl": TWO_TIERS | {"selected_per_edge": 1, "max_local_rounds": 2},
}
SPLIT = ("sfl-v1", "sfl-v2", "sl", "phsfl")


def mortal(folder):
    return f"{MORTAL}(folder={str(folder)!r}, driver={os.getpid()})"


FEW = ("fedavg", "h-fedavg", "phsfl")  # in `make test`; the others in `make test-deploy`


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", [pytest.param(a, marks=() if a in FEW else pytest.mark.deploy) for a in CASES])
def test_a_worker_that_dies_in_each_tiers_requests_changes_no_bit(ray_here, tmp_path, algorithm, capsys):
    settings = SMALL | CASES[algorithm] | {"algorithm": algorithm, "task": mortal(tmp_path)}
    here = run_app(tmp_path / "here", **settings)
    stages = {"train", "evaluate"} | ({"heads"} if algorithm in SPLIT else set())
    capsys.readouterr()
    there = run_app(tmp_path / "there", engine="ray", ray_workers=len(stages) + 1, **settings)
    assert same_runs(here, there)
    assert {mark.name for mark in tmp_path.glob("died-in-*")} == {f"died-in-{stage}" for stage in stages}
    said = [line for line in capsys.readouterr().out.splitlines() if " died: " in line]
    assert [line.split(": ")[1] for line in said] == [
        f"its nodes go to others, of which {n} are left" for n in range(len(stages), 0, -1)
    ]


@pytest.mark.parametrize("algorithm", ["fedavg", "h-fedavg"])
def test_a_run_goes_on_with_another_engine_and_number_of_workers(ray_here, tmp_path, algorithm):
    settings = SMALL | CASES[algorithm] | {"algorithm": algorithm, "batches_per_epoch": 2, "validation_share": 0.2}
    here = run_app(tmp_path / "here", global_rounds=3, **settings)
    there = run_app(tmp_path / "there", global_rounds=1, engine="ray", ray_workers=2, **settings)
    assert main([f"resume={there}", "engine=in-process", "global-rounds=2"]) == 0
    assert main([f"resume={there}", "engine=ray", "ray.workers=1", "global-rounds=3"]) == 0
    assert main([f"resume={there}"]) == 0  # with the engine that it had last
    saved = json.loads((there / "config.json").read_text(encoding="utf-8"))
    assert (saved["engine"], saved["ray.workers"]) == ("ray", 1)
    assert same_runs(here, there)
    assert (here / "best-model.pt").read_bytes() == (there / "best-model.pt").read_bytes()


@pytest.mark.parametrize(("algorithm", "task"), [("fedavg", "Measured"), ("fedavg", "Broken"), ("h-fedavg", "Broken")])
def test_a_task_of_ones_own_reads_its_data_in_each_worker(ray_here, tmp_path, algorithm, task):
    settings = {"algorithm": algorithm, "task": f"tests.app.own_tasks:{task}", "num_clients": 4, "batch_size": 8}
    here = run_app(tmp_path / "here", **settings)
    assert same_runs(here, run_app(tmp_path / "there", engine="ray", ray_workers=2, **settings))
    failures = [who for line in lines(here, "edge") for who in line["failures"]]
    assert {who["client"] for who in failures} == ({1} if task == "Broken" else set())


def test_clients_in_workers_have_folders_of_their_own(ray_here, tmp_path):
    settings = OWN | {"data_dir": str(own_folders(tmp_path / "images")), "num_edges": 2, "global_rounds": 1}
    here = run_app(tmp_path / "here", **settings)
    assert same_runs(here, run_app(tmp_path / "there", engine="ray", ray_workers=2, **settings))
    flat = settings | {"algorithm": "fedavg", "num_edges": 0}
    assert same_runs(
        run_app(tmp_path / "flat", **flat), run_app(tmp_path / "flat-there", engine="ray", ray_workers=2, **flat)
    )


@pytest.mark.parametrize("algorithm", ["sfl-v1", "sl"])
def test_streams_of_clients_in_workers_reach_the_run(ray_here, tmp_path, algorithm):
    settings = SMALL | {"algorithm": algorithm, "num_clients": 3, "batches_per_epoch": 2, "global_rounds": 1}
    settings |= {"split_transport": "stream", "stream_port": 0}
    here = run_app(tmp_path / "here", **settings)
    there = run_app(tmp_path / "there", engine="ray", ray_workers=2, **settings)
    assert same_runs(here, there)
    assert summary(there)["failures"] == 0


class KillWorkers(LogProgress):
    """Kills all workers of an engine when a round is over."""

    def __init__(self, engine):
        super().__init__()
        self.engine = engine

    def round_over(self, *what):
        super().round_over(*what)
        for about in self.engine._workers.abouts:
            os.kill(about["pid"], signal.SIGKILL)


def test_without_workers_a_run_ends_with_a_line_and_goes_on_later(ray_here, tmp_path):
    settings = SMALL | {"algorithm": "fedavg", "global_rounds": 2, "local_epochs": 1, "batches_per_epoch": 2}
    here, there = run_app(tmp_path / "here", **settings), tmp_path / "there"
    config = config_of(engine="ray", ray_workers=2, output_dir=str(there), **settings)
    go_on = f"no Ray worker is left; to go on after the last whole round, set resume = {str(there)!r}"
    with engine_of(config) as engine, pytest.raises(UserError, match=f"^{re.escape(go_on)}$"):
        run(config, engine, KillWorkers(engine), tmp_path)
    assert len(lines(there, "global")) == 1
    assert main([f"resume={there}", "engine=ray", "ray.workers=1"]) == 0
    assert same_runs(here, there)


def refusal(machines, *, workers=0, gpus=0.0, threads=1):
    with pytest.raises(UserError) as refused:
        places_of(machines, workers, gpus, threads, on_gpu=False)
    return str(refused.value)


def test_too_much_is_refused_with_a_line():
    one, two = Machine("a", 2, memory_bytes=16e9), Machine("b", 4, num_gpus=1, memory_bytes=0.5e9)
    assert refusal([one], workers=3) == "ray.workers = 3: allowed is at most 2: the cores of this machine"
    assert refusal([one, two], workers=7) == "ray.workers = 7: allowed is at most 6: the cores of 2 machines"
    assert refusal([one], workers=2, threads=2).endswith(
        "at most 1: the cores by train.torch-threads = 2 of this machine"
    )
    assert refusal([one], threads=3).startswith("train.torch-threads = 3: allowed is at most 2")
    assert refusal([one], gpus=0.5) == "ray.gpus-per-worker = 0.5: allowed is 0: Ray finds no GPU"
    assert refusal([two], gpus=2.0) == "ray.gpus-per-worker = 2.0: allowed is 0 to 1, the GPUs of a machine"
    assert refusal([two], workers=4, gpus=0.5).startswith(
        "ray.workers = 4: allowed is at most 2: the cores, or by ray.gp"
    )
    assert refusal([two], workers=3) == (
        "ray.workers = 3: allowed is at most 1: a worker takes 0.3 GB or more, and a machine has 0.5 GB for them"
    )
    # The others of 7 would go to the machine of unknown memory, and 4 to each of 8.
    large = Machine("c", 8)
    assert refusal([two, large], workers=8).startswith("ray.workers = 8: allowed is at most 4: a worker takes 0.3 GB")
    assert len(places_of([two, large], 4, 0.0, 1, on_gpu=False)) == 4


def test_workers_go_to_machines_by_their_cores_and_share_gpus():
    machines = [Machine("a", 2), Machine("b", 6, num_gpus=2)]
    places = places_of(machines, 4, 0.0, 1, on_gpu=True)
    assert [(p.machine, p.num_cpus, p.num_gpus) for p in places] == [("a", 1, 0.0)] + [("b", 1, 0.5)] * 3
    assert [p.machine for p in places_of(machines, 0, 0.0, 2, on_gpu=False)] == ["a", "b", "b", "b"]
    assert [p.machine for p in places_of(machines, 0, 0.0, 1, on_gpu=False, enough=3)] == ["a", "b", "b"]
    assert [p.num_gpus for p in places_of(machines, 0, 0.25, 1, on_gpu=True)] == [0.25] * 6
    assert places_of(machines, 1, 0.0, 1, on_gpu=False, counts_cores=False)[0].num_cpus == 0


@pytest.mark.parametrize(
    ("address", "allowed"),
    [
        ("nowhere", "the HOST:PORT that `ray start --head` printed"),
        ("ray://127.0.0.1:10001", "the HOST:PORT that `ray start --head` printed"),
        ("127.0.0.1:1", "that of a Ray cluster, and there is none (Connection refused)"),
    ],
)
def test_an_address_without_a_cluster_is_refused_with_a_line(address, allowed):
    with pytest.raises(UserError, match=f"^ray.address = {address!r}: allowed is .*{re.escape(allowed)}$"):
        check_address(address)


def test_where_ray_does_not_start_a_run_ends_with_a_line(tmp_path):
    # Ray's sockets are below this folder, and the name of a socket has at most 107 bytes.
    home = os.environ | {"RAY_TMPDIR": str(tmp_path / ("x" * 107)), "COLUMNS": "200"}
    command = [sys.executable, "-m", "espalier.app", "engine=ray", "num-clients=4"]
    done = subprocess.run(command, cwd=tmp_path, env=home, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    said = (done.stdout + done.stderr).strip().splitlines()
    assert re.search("engine = 'ray': allowed is 'in-process', as Ray does not start here .*107 bytes", said[-1])
    assert "Traceback" not in done.stdout + done.stderr


FIRST_START_FAILS = """
import gc, subprocess, sys
from espalier.app.engines import ray_cluster

init, left = ray_cluster._init, []

def fails_once(**options):
    if not left:
        left.append(subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE))
        own = [left[0]]
        own.append(own)  # found by the garbage collector alone
        left[0] = own[0].pid
        raise RuntimeError("the node timed out")
    init(**options)

ray_cluster._init = fails_once
gc.disable()
with ray_cluster.started_ray("", num_cores=1):
    print("started", ray_cluster.ray.is_initialized())
    gc.collect()
"""


def test_a_start_of_ray_that_failed_is_tried_again_and_leaves_no_warning(tmp_path):
    command = [sys.executable, "-W", "error::ResourceWarning", "-c", FIRST_START_FAILS]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "started True\n", "")


# Ray waits for none of the processes that it starts, nor closes their files.
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.slow
@pytest.mark.deploy
def test_a_machine_that_leaves_a_cluster_changes_no_bit(tmp_path, monkeypatch):
    # A cluster's address is left in Ray's folder, where each Flower simulation of this machine would find and join it.
    monkeypatch.setenv("RAY_TMPDIR", mkdtemp(prefix="ray-"))
    settings = SMALL | {"batches_per_epoch": 2} | CASES["phsfl"]
    settings |= {"algorithm": "phsfl", "global_rounds": 12}
    cluster = Cluster(initialize_head=True, connect=False, head_node_args={"num_cpus": 1, "include_dashboard": False})
    try:
        second = cluster.add_node(num_cpus=2)
        config = config_of(engine="ray", ray_address=cluster.address, output_dir=str(tmp_path / "there"), **settings)
        values = [f"{key}={toml_text(value)}" for key, value in config.as_dict().items() if value != ""]
        command = [sys.executable, "-m", "espalier.app", *values]
        with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as process:
            while len(rounds_over(tmp_path / "there")) < 2:
                assert process.poll() is None
                time.sleep(0.02)
            process.send_signal(signal.SIGSTOP)  # no round ends while the machine leaves, however long that takes
            cluster.remove_node(second, allow_graceful=False)
            process.send_signal(signal.SIGCONT)
            said = process.stdout.read()
        assert process.returncode == 0
        assert "3 workers on" in said
        assert said.count(": its nodes go to others") == 2
    finally:
        cluster.shutdown()
        del cluster, second
        gc.collect()
    assert same_runs(run_app(tmp_path / "here", **settings), tmp_path / "there")


def toml_text(value):
    return str(value).lower() if isinstance(value, bool) else value


def rounds_over(folder):
    file = folder / "metrics.jsonl"
    return [line for line in file.read_text().splitlines() if '"global"' in line] if file.exists() else []


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [TWO_TIERS, {"algorithm": "fedavg"}, TWO_TIERS | {"algorithm": "h-fedavg", "async_tier": "edges"}],
    ids=["edges", "clients", "clients of edges"],
)
def test_tiers_that_wait_for_nobody_have_the_same_bits_with_any_number_of_workers(ray_here, tmp_path, settings):
    settings = SMALL | settings | {"async_mode": "fedbuff", "async_buffer_size": 2, "global_rounds": 4}
    here = run_app(tmp_path / "here", **settings)
    for workers in (1, 2):
        there = run_app(tmp_path / f"with-{workers}", engine="ray", ray_workers=workers, **settings)
        assert same_runs(here, there)
        own, other = ([line["async"] for line in lines(folder, "global")] for folder in (here, there))
        assert own == other
