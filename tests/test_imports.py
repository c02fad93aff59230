"""Who may import whom: the walls between the folders, and the one module that may use Flower's private names."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from espalier import strategies

ROOT = Path(__file__).parent.parent
FOLDERS = ("app", "strategies", "clients", "sim")
ALLOWED = {
    "app": {"espalier.app", "espalier.strategies", "espalier.clients", "espalier.sim"},
    "strategies": {"espalier.strategies", "espalier.clients.messages"},
    "clients": {"espalier.clients"},
    "sim": {"espalier.sim"},
}
LIBRARIES = {
    "clients": {"flwr", "grpc", "numpy", "torch"},
    "sim": {"flwr", "numpy"},
    "strategies": {"flwr", "grpc", "numpy", "cvxpy", "torch"},
}
PRIVATE = "sim/in_process_grid.py"
STANDARD = sys.stdlib_module_names


def imported(path: Path) -> set[str]:
    """Return the full names of the modules that a file imports."""
    names = set()
    package = ".".join(("espalier", *path.relative_to(ROOT).parent.parts))
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            names.add(".".join([*above, *([node.module] if node.module else [])]))
    return names


def modules() -> list[str]:
    return [str(p.relative_to(ROOT)) for folder in FOLDERS for p in sorted((ROOT / folder).rglob("*.py"))]


@pytest.mark.parametrize("module", modules())
def test_folders_import_only_what_the_design_allows(module):
    folder = module.split("/")[0]
    for name in imported(ROOT / module):
        top = name.split(".")[0]
        assert top not in FOLDERS, f"{name}: espalier.{name}"
        if top == "espalier":
            assert any(name == allowed or name.startswith(allowed + ".") for allowed in ALLOWED[folder]), name
        elif folder in LIBRARIES and top not in STANDARD:
            assert top in LIBRARIES[folder], name


def test_the_walls_would_notice():
    assert imported(ROOT / "strategies/topology.py") >= {
        "espalier.clients.messages.profile",
        "espalier.strategies.exchange",
        "flwr.serverapp",
    }


@pytest.mark.parametrize("module", [m for m in modules() if m != PRIVATE])
def test_flowers_private_names_live_in_one_module(module):
    public = {"flwr.app", "flwr.serverapp", "flwr.serverapp.exception", "flwr.serverapp.strategy", "flwr.clientapp"}
    assert {name for name in imported(ROOT / module) if name.split(".")[0] == "flwr"} <= public


def test_plans_need_neither_flower_nor_pytorch():
    program = """
import sys
sys.modules |= dict.fromkeys(("flwr", "torch", "grpc"))  # which can't be imported then
from espalier.strategies.allocation import get_solver
"""
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True)


def test_what_strategies_exports_is_there():
    for name in strategies.__all__:
        assert getattr(strategies, name).__name__ == name
    with pytest.raises(AttributeError, match=r"module 'espalier.strategies' has no attribute 'FedFoo'"):
        strategies.FedFoo  # noqa: B018
