"""A deployment on this machine: the results of the in-process engine, and nothing left behind."""

import json
import os
import signal
import subprocess
import sys
import threading
import tomllib
import urllib.request
from pathlib import Path

import local
import pytest
from certificates import make_device_key
from flwr_run import free_ports

from tests.app.runs import key_of, lines, run_app, same_weights, summary

from .faults import ROOT, finish, start
from .soak.resources import processes_of

pytestmark = [pytest.mark.slow, pytest.mark.deploy]


class Deployment:
    """``deploy/local.py`` in a process, in folders of its own."""

    def __init__(self, path, **settings):
        self.folder, self.path = path / "deployment", path
        for name in ("home", "tmp", "cache", "cwd"):
            (path / name).mkdir()
        config = " ".join(f"{key_of(key)}={json.dumps(value)}" for key, value in settings.items())
        self.environment = {
            **os.environ,
            # A SuperNode starts programs of Flower by their names.
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",
            "HOME": str(path / "home"),
            "TMPDIR": str(path / "tmp"),
            "XDG_CACHE_HOME": str(path / "cache"),
            "MPLCONFIGDIR": str(path / "cache"),
        }
        self.process = subprocess.Popen(
            [
                *(sys.executable, str(ROOT / "deploy/local.py"), str(ROOT), "--supernodes", "2"),
                *("--folder", str(self.folder), "--run-config", config),
            ],
            cwd=path / "cwd",
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.output = ""

    def read_until(self, text):
        """Read its output up to a line that has `text`."""
        for line in self.process.stdout:
            self.output += line
            if text in line:
                return
        pytest.fail(f"no {text!r} in:\n{self.output}")

    def end(self):
        """Read the rest and return the exit status."""
        self.output += self.process.stdout.read()
        return self.process.wait(timeout=120)

    def processes(self):
        return processes_of(self.folder)

    def files_outside(self):
        return [*(self.path / "home").iterdir(), *(self.path / "tmp").iterdir(), *(self.path / "cwd").iterdir()]


class Scraper(threading.Thread):
    """Reads what a run serves to Prometheus every half second, while it serves."""

    def __init__(self, port):
        super().__init__(daemon=True)
        self.port, self.read, self.over = port, [], threading.Event()

    def run(self):
        while not self.over.wait(0.5):
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=5) as answer:
                    lines = answer.read().decode().splitlines()
            except OSError:
                continue
            self.read.append(
                {name: float(v) for name, _, v in (line.rpartition(" ") for line in lines) if name[0] != "#"}
            )


@pytest.fixture
def deploy(tmp_path):
    """Return a function that starts a deployment; its process is ended with the test."""
    started = []

    def start(**settings):
        results = str(tmp_path / "deployment/results")
        started.append(Deployment(tmp_path, output_dir=results, **{"report.plots": False} | settings))
        return started[0]

    yield start
    for deployment in started:
        deployment.process.terminate()
        deployment.process.wait()
        deployment.process.stdout.close()


def test_the_weights_of_the_in_process_engine_and_an_unregistered_node_is_refused(deploy, tmp_path):
    settings = {
        "num_clients": 2,
        "global_rounds": 2,
        "edge_rounds": 1,
        "local_epochs": 1,
        "batches_per_epoch": 2,
        "report.evaluate-every": 2,
    }
    scraper = Scraper(*free_ports(1))
    scraper.start()
    deployment = deploy(**settings, **{"deploy.metrics-port": scraper.port})
    deployment.read_until("SuperNodes online: 2")
    make_device_key(tmp_path / "stranger")
    connection = tomllib.loads((deployment.folder / "flower/config.toml").read_text())["superlink"]["local"]
    # Into a file: its child would keep a pipe open, and ends only once it is seen to be gone.
    with (tmp_path / "stranger.log").open("w") as log:
        stranger = subprocess.run(
            [
                *("flower-supernode", "--superlink", connection["address"], "--port", str(free_ports(1)[0])),
                *("--root-certificates", connection["root-certificates"]),
                *("--auth-supernode-private-key", str(tmp_path / "stranger"), "--node-config", "partition-id=0"),
            ],
            env={**deployment.environment, "FLWR_HOME": str(tmp_path / "flower")},
            stdout=log,
            stderr=subprocess.STDOUT,
            check=False,
            timeout=300,
        )
    assert stranger.returncode == 1
    assert "Failed to activate SuperNode" in (tmp_path / "stranger.log").read_text()
    assert deployment.end() == 0, deployment.output
    scraper.over.set()
    assert same_weights(deployment.folder / "results", run_app(tmp_path / "in-process", **settings))
    assert deployment.processes() == []
    assert deployment.files_outside() == []
    (after_one, *_) = (read for read in scraper.read if read["espalier_rounds"] == 1)
    (one, _), cloud = lines(deployment.folder / "results", "global"), 'tier="cloud"}'
    assert after_one["espalier_connected_nodes"] == 2
    assert after_one["espalier_last_round_seconds"] == one["seconds"]
    for direction, kinds in one["bytes"]["cloud"].items():
        assert after_one[f'espalier_bytes_total{{direction="{direction}",{cloud}'] == sum(kinds.values()) > 0


def test_split_training_gives_the_same_weights_by_messages_and_by_stream(tmp_path):
    settings = {
        "algorithm": "phsfl",
        "num_clients": 1,
        "num_edges": 1,
        "global_rounds": 1,
        "edge_rounds": 1,
        "local_epochs": 1,
        "batches_per_epoch": 1,
        "fine-tune.steps": 1,
    }
    expected = run_app(tmp_path / "in-process", **settings)
    with local.federation(tmp_path / "deployment", local.device_configs(range(1), 1)) as made:
        for name, how in (("messages", {}), ("stream", {"split.transport": "stream", "deploy.transport": "stream"})):
            results = tmp_path / name
            finish(start(made.environment, results, settings | how), made.environment)
            assert same_weights(results, expected)
            assert summary(results)["personalised"] == summary(expected)["personalised"]


def test_an_interrupted_deployment_leaves_nothing(deploy):
    deployment = deploy(num_clients=2)
    deployment.read_until("results go to")
    assert len(deployment.processes()) > 5
    deployment.process.send_signal(signal.SIGINT)
    assert deployment.end() == 130
    assert deployment.output.splitlines()[-1] == "interrupted; stopping the run"
    assert deployment.processes() == []
    assert deployment.files_outside() == []


def test_a_run_that_fails_is_no_success(deploy):
    deployment = deploy(num_clients=3, wait_for_nodes=1)
    assert deployment.end() == 1
    assert "num-clients = 3" in deployment.output
    assert deployment.processes() == []


def test_what_does_not_start_is_named(tmp_path, monkeypatch):
    script = tmp_path / "python"
    script.write_text("#!/bin/sh\necho no such certificate\nexit 3\n")
    script.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(script))
    message = r"^the SuperLink ended with status 3:\nno such certificate$"
    with pytest.raises(local.StartError, match=message), local.federation(tmp_path / "deployment", ["partition-id=0"]):
        pytest.fail("started")
