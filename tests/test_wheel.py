"""The wheel, installed into an empty folder, beside a user's own modules that have the names of our folders."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from flwr_run import local_superlink

from tests.app.runs import flwr_run_on

ROOT = Path(__file__).parent.parent
FOLDERS = ("app", "clients", "sim", "strategies", "espalier")
OWN = 'raise ImportError("this is the user\'s own")\n'

RUN_EXAMPLE = """
import tomllib
from importlib import import_module
from pathlib import Path

from flwr.app import Context, RecordDict

from espalier.sim.in_process_grid import InProcessGrid

package = {package!r}
client, server = (import_module(f"{{package}}.{{name}}_app") for name in ("client", "server"))
config = tomllib.loads(Path({project!r}).read_text(encoding="utf-8"))["tool"]["flwr"]["app"]["config"]
context = Context(run_id=1, node_id=1, node_config={{}}, state=RecordDict(), run_config=config)
server.app(InProcessGrid(client.app, 4, run_config=config), context)
"""

WHERE_FROM = """
import sys
files = {module.__file__ for name, module in sys.modules.items() if name.partition(".")[0] == "espalier"}
print(*sorted(files), sep="\\n", file=sys.stderr)
"""

PLAN = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name in ("flwr", "torch", "grpc", "ray", "matplotlib", "pydantic"):
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Missing())
from espalier.strategies.allocation import Problem, get_solver

problem = Problem(
    gain=[2e-11, 4e-12, 9e-13, 2e-14],
    max_frequency_hz=[1.2e9, 1.5e9, 1.8e9, 2e9],
    max_power_watts=0.5,
    energy_budget_joules=1.0,
    cycles_per_local_round=1.4e7,
    payload_bits=219_648 * 33,
    max_local_rounds=50,
    deadline_seconds=2.0,
    clients_per_cell=2,
    bandwidth_hz=540e3,
    noise_watts=2.15e-15,
    capacitance=2e-28,
    theta=0.4,
)
print(*(get_solver(name)(problem).selected.sum() for name in ("exact", "sca")))
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Build the wheel and install it, and nothing else, into an empty folder."""
    source, site = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("site")
    for folder in FOLDERS:
        shutil.copytree(ROOT / folder, source / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for file in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / file, source)
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--no-build-isolation"]
    subprocess.run([*pip, "--target", site, source], check=True)
    return site


@pytest.fixture
def user(tmp_path, site):
    """Return what runs a command in a folder of the user's, whose modules come before the installed ones."""
    for name in ("app.py", "clients.py", "sim.py", "strategies/__init__.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(OWN)

    def run(*command: str | Path, path: tuple[Path, ...] = ()) -> subprocess.CompletedProcess[str]:
        folders = os.pathsep.join(map(str, (tmp_path, site, *path)))
        environment = {**os.environ, "PYTHONPATH": folders, "PYTHONSAFEPATH": "1", "PYTHONWARNINGS": "default"}
        finished = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300, check=False
        )
        assert finished.returncode == 0, finished.stdout + finished.stderr
        return finished

    return run


def test_it_has_every_module_and_its_types(site):
    def modules(root: Path, folders: tuple[str, ...]) -> set[Path]:
        return {file.relative_to(root) for folder in folders for file in (root / folder).rglob("*.py")}

    expected = {Path("espalier", file) for file in modules(ROOT, FOLDERS[:4])} | modules(ROOT, ("espalier",))
    assert modules(site, ("espalier",)) == expected
    assert (site / "espalier/py.typed").is_file()
    assert {path.name.partition("-")[0] for path in site.iterdir()} == {"bin", "espalier", "espalier_fl"}


@pytest.mark.slow
def test_an_example_runs_with_it(user, site):
    name = "own-split-model"
    example = ROOT / "examples" / name
    program = RUN_EXAMPLE.format(package=name.replace("-", "_"), project=str(example / "pyproject.toml")) + WHERE_FROM
    finished = user(sys.executable, "-c", program, path=(example,))
    (accuracy,) = re.findall(r"^accuracy after 5 rounds: (0\.\d{4})$", finished.stdout, re.MULTILINE)
    assert float(accuracy) > 0.93
    files = [line for line in finished.stderr.splitlines() if line.endswith(".py")]
    assert len(files) > 10
    assert [file for file in files if not file.startswith(str(site))] == []


@pytest.mark.slow
def test_the_command_runs(user, site, tmp_path):
    config = ["algorithm=h-fedavg", "num-clients=2", "global-rounds=1", "batches-per-epoch=1", "report.plots=false"]
    assert "accuracy of clients" in user(site / "bin/espalier", *config, "output-dir=out").stdout
    assert (tmp_path / "out/summary.json").is_file()


def test_plans_need_numpy_and_cvxpy_alone(user):
    assert user(sys.executable, "-c", PLAN).stdout == "2 2\n"


@pytest.mark.slow
@pytest.mark.deploy
def test_a_new_project_runs_and_shows_what_is_changed_in_it(site, tmp_path, monkeypatch):
    """By `flwr run` as by itself, also once each of the three files is changed in one line."""
    monkeypatch.setenv("PYTHONPATH", str(site))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    project, short = tmp_path / "my-study", "global-rounds=2 report.plots=false"

    def run(*command: str | Path, cwd: Path = project) -> None:
        finished = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=300, check=False)
        assert finished.returncode == 0, finished.stdout + finished.stderr

    def espalier_run(name: str) -> dict[str, torch.Tensor]:
        run(site / "bin/espalier", "pyproject.toml", *short.split(), f"output-dir={tmp_path / name}")
        return weights(tmp_path / name)

    def weights(folder: Path) -> dict[str, torch.Tensor]:
        (maker,) = json.loads(Path(folder, "made-by.json").read_text(encoding="utf-8"))
        assert maker["commit"] == ""  # it is the wheel's code
        return torch.load(Path(folder, "model.pt"), weights_only=True)

    run(site / "bin/espalier", "new", "my-study", cwd=tmp_path)
    with local_superlink() as environment:

        def flwr_run(name: str, config: str, *options: str) -> dict[str, torch.Tensor]:
            config = f'{config} output-dir="{tmp_path / name}"'
            finished = flwr_run_on(environment, project, "--run-config", config, *options)
            assert finished.returncode == 0, finished.stdout + finished.stderr
            return weights(tmp_path / name)

        before = espalier_run("first")
        torch.testing.assert_close(flwr_run("flwr", short), before, rtol=0, atol=0)
        of_flower = f'engine="flower" num-clients=4 {short}'
        federation = "num-supernodes=4 client-resources-num-cpus=1 init-args-num-cpus=2"
        on_nodes = flwr_run("on-nodes", of_flower, "--federation-config", federation)
        assert on_nodes["head.weight"].shape == (2, 16)

        for name, old, new in (
            ("algorithm", "PULL = 0.1", "PULL = 10.0"),
            ("strategy", "POWER = 0.5", "POWER = 0.0"),
            ("task", "hidden: int = 16", "hidden: int = 8"),
        ):
            file = project / f"my_study/{name}.py"
            text = file.read_text(encoding="utf-8")
            assert text.count(old) == 1
            file.write_text(text.replace(old, new), encoding="utf-8")
            changed = espalier_run(name)
            assert not torch.equal(changed["head.bias"], before["head.bias"]), name
            before = changed
        assert changed["head.weight"].shape == (2, 8)
        torch.testing.assert_close(flwr_run("changed", short), changed, rtol=0, atol=0)


@pytest.mark.slow
@pytest.mark.deploy
def test_an_app_of_the_hub_runs_with_it(site, tmp_path):
    name = "hierarchical"
    environment = {**os.environ, "PYTHONPATH": str(site), "HOME": str(tmp_path / "home")}
    shutil.copytree(ROOT / "hub" / name, tmp_path / name)
    short = "global-rounds=1 edge-rounds=1 report.plots=false"
    command = [sys.executable, ROOT / "deploy/flwr_run.py", ".", "--run-config", short]
    done = subprocess.run(
        command, cwd=tmp_path / name, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (folder,) = re.findall(r"^results: (.+)$", done.stdout, re.M)
    (maker,) = json.loads(Path(folder, "made-by.json").read_text(encoding="utf-8"))
    assert maker["commit"] == ""  # it is the wheel's code
    assert json.loads(Path(folder, "summary.json").read_text(encoding="utf-8"))["replies_left_out"] == 0
