"""Who may import whom, within the app too; who may use Flower's private names, and who may name an algorithm."""

import ast
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from espalier import strategies
from espalier.app.algorithms.registry import ALGORITHMS
from espalier.app.features.table import FEATURES

ROOT = Path(__file__).parent.parent
FOLDERS = ("app", "strategies", "clients", "sim")
ALLOWED = {
    "app": {"espalier.app", "espalier.strategies", "espalier.clients", "espalier.sim"},
    "strategies": {"espalier.strategies", "espalier.clients.messages", "espalier.clients.shared"},
    "clients": {"espalier.clients"},
    "sim": {"espalier.sim"},
}
LIBRARIES = {
    "clients": {"flwr", "grpc", "numpy", "torch"},
    "clients/secure/identity.py": {"cryptography"},
    "clients/shared/secure/keys.py": {"cryptography"},
    "clients/shared/secure/masks.py": {"cryptography", "numpy"},
    "clients/shared/secure/shares.py": {"Crypto"},
    "sim": {"flwr", "numpy"},
    "sim/ray_grid.py": {"flwr", "numpy", "ray"},
    "strategies": {"flwr", "grpc", "numpy", "cvxpy", "scipy", "torch"},
}
PRIVATE = "sim/flower_private.py"
WHOLE_CONFIG = "espalier.app.config.run_config"
SAME_WORDS = {"app/engines/ray_cluster.py": {"local"}}  # an address as Ray calls it
OF_AN_ALGORITHM = {f"app/algorithms/{name.replace('-', '_')}.py": name for name in ALGORITHMS}
# The folders of `app/` from the ground up: each imports from those before it, and from no other.
LAYERS = (
    *("ground", "settings", "meters", "tasks", "conversion", "planning", "algorithms"),
    *("features", "config", "wiring", "engines"),
    *(
        "reports",
        "page",
        "comparison",
        "tiers",
        "run",
        "checks",
        "project",
        "client",
        "server",
        "command_line",
        "sweeps",
        "entry_point",
        "__main__",
    ),
)
# All others take sections of the run config, or what they hold.
TAKES_WHOLE_CONFIG = {
    "app/checks/algorithm_laws.py",
    "app/wiring/one_server.py",
    "app/run/checked_run.py",
    "app/wiring/edges.py",
    "app/wiring/planning.py",
    "app/run/run.py",
    "app/command_line.py",
    "app/wiring/task_of_run.py",
    "app/wiring/clients.py",
    "app/reports/saved.py",
    "app/tiers/own_hosts.py",
    "app/tiers/served.py",
}
STANDARD = sys.stdlib_module_names


@cache
def parsed(module: str) -> list[ast.AST]:
    return list(ast.walk(ast.parse((ROOT / module).read_text(encoding="utf-8"))))


def imported(module: str, *, with_names: bool = False) -> set[str]:
    """Return the full names of the modules that a file imports; with names also what it imports from them."""
    names = set()
    package = ".".join(("espalier", *Path(module).parent.parts))
    for node in parsed(module):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            module = ".".join([*above, *([node.module] if node.module else [])])
            names.add(module)
            if with_names:
                names |= {f"{module}.{alias.name}" for alias in node.names}
    return names


def constants(module: str) -> list[str]:
    """Return the texts in a file's code; docstrings are none."""
    alone = {id(node.value) for node in parsed(module) if isinstance(node, ast.Expr)}
    return [
        node.value
        for node in parsed(module)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in alone
    ]


def modules(*folders: str) -> list[str]:
    return [str(p.relative_to(ROOT)) for folder in folders for p in sorted((ROOT / folder).rglob("*.py"))]


def test_folders_import_only_what_the_design_allows():
    for module in modules(*FOLDERS):
        folder = module.split("/")[0]
        for name in imported(module):
            top = name.split(".")[0]
            assert top not in FOLDERS, f"{module}: {name}: espalier.{name}"
            if top == "espalier":
                allowed = ALLOWED[folder]
                assert any(name == one or name.startswith(one + ".") for one in allowed), (module, name)
            elif folder in LIBRARIES and top not in STANDARD:
                assert top in LIBRARIES.get(module, LIBRARIES[folder]), (module, name)


def test_the_walls_would_notice():
    assert imported("strategies/topology.py") >= {
        "espalier.clients.messages.profile",
        "espalier.strategies.exchange",
        "flwr.serverapp",
    }


def room(module: str) -> str:
    """Return the folder of `app/` that a module is in, or the door that it is."""
    return module.split("/")[1].removesuffix(".py")


def test_the_folders_of_the_app_are_layers():
    for module in set(modules("app")) - {"app/__init__.py"}:
        own = LAYERS.index(room(module))
        names = (name.split(".") for name in imported(module, with_names=True))
        rooms = {parts[2] for parts in names if parts[:2] == ["espalier", "app"] and len(parts) > 2}
        assert {one for one in rooms if LAYERS.index(one) > own} == set(), module


def test_the_whole_run_config_is_for_those_who_assemble_a_run():
    for module in modules("app"):
        names = imported(module, with_names=True)
        if module not in TAKES_WHOLE_CONFIG and not module.startswith(("app/config/", "app/features/")):
            whole = [name for name in names if name == WHOLE_CONFIG or name.split(".")[-1] in ("RunConfig", "Case")]
            assert whole == [], module


def test_the_wall_around_the_run_config_would_notice():
    assert imported("app/run/run.py", with_names=True) >= {WHOLE_CONFIG, f"{WHOLE_CONFIG}.RunConfig"}


def test_algorithms_are_named_in_their_own_files_alone():
    for module in set(modules("app")) - OF_AN_ALGORITHM.keys() - {"app/algorithms/registry.py"}:
        assert set(constants(module)) & ALGORITHMS.keys() == SAME_WORDS.get(module, set()), module


def test_features_are_named_in_their_own_folders_and_in_the_table_alone():
    inside, features = "espalier.app.features.", {feature.name for feature in FEATURES}
    for module in set(modules("app")) - {"app/features/table.py"}:
        named = {name.removeprefix(inside).split(".")[0] for name in imported(module) if name.startswith(inside)}
        assert named & features <= set(module.split("/")[2:3]), module


def test_nobody_compares_names_of_engines_transports_and_roles():
    """What they mean for a run stands in their tables, in `app/settings/`."""
    asked = re.compile(r"""(engine|transport|role)["']?\]?$""")
    for module in modules("app"):
        for node in (node for node in parsed(module) if isinstance(node, ast.Compare)):
            sides = [node.left, *node.comparators]
            texts = [one for one in sides if isinstance(one, ast.Constant) and isinstance(one.value, str)]
            others = [ast.unparse(one) for one in sides if one not in texts]
            assert not texts or not any(map(asked.search, others)), (module, others)


def test_every_algorithm_has_a_file_of_its_own():
    for module, name in OF_AN_ALGORITHM.items():
        assert name in constants(module)


def test_flowers_private_names_live_in_one_module():
    servers = {"flwr.serverapp", "flwr.serverapp.exception", "flwr.serverapp.strategy"}
    public = {"flwr.app", "flwr.clientapp", "flwr.clientapp.mod", *servers}
    for module in set(modules(*FOLDERS)) - {PRIVATE}:
        assert {name for name in imported(module) if name.split(".")[0] == "flwr"} <= public, module


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
