"""A solver of one's own makes the plans of a run, and one that fails, or breaks a limit, ends it in one line."""

import json
import threading
from dataclasses import dataclass, replace

import numpy as np
import pytest

from espalier.app.command_line import main
from espalier.app.ground.errors import UserError
from espalier.app.planning.solving import solver_of
from espalier.strategies.allocation import (
    SCA,
    best_choice,
    choose,
    exact,
    why_not,
    with_best_choices,
)
from tests.app.assembling import config_of
from tests.app.runs import lines, run_app, same_weights
from tests.app.tiers.hosts import SMALL
from tests.app.tiers.served import run_served
from tests.app.tiers.test_served import same_runs

PLANNED = {"algorithm": "rawhfl", "selected_per_edge": 1, "max_local_rounds": 3}


def slow_first(problem):
    """Take the slowest devices."""
    best = best_choice(problem)
    selected, skipped = choose(problem, best.eligible, problem.max_frequency_hz)
    return with_best_choices(problem, best, selected, why_not(best.eligible, best.reason, skipped))


class Greedy:
    """Is `exact`, and counts its calls."""

    def __init__(self, depth=1):
        self.depth, self.calls = depth + 0, 0

    def __call__(self, problem):
        self.calls += 1
        return exact(problem)


def fails(problem):
    raise KeyError("no such column")


def breaks_a_limit(problem):
    plan = exact(problem)
    return replace(plan, frequency_hz=plan.frequency_hz * 1e3)


def returns_nothing(problem):
    return None


def of(text):
    return config_of(**PLANNED, plan_solver=text).plan.solver


def own(name):
    return f"{__name__}:{name}"


def test_the_slowest_devices_are_selected_on_every_engine(tmp_path):
    settings = SMALL | PLANNED | {"max_overlap": 1, "plan_solver": own("slow_first")}
    here = run_app(tmp_path / "here", **settings)
    frequency = {c["client"]: c["max_frequency_hz"] for c in json.loads((here / "world.json").read_text())["clients"]}
    for line in lines(here, "edge"):
        for plan in line["plans"]:
            assert plan["selected"] == [min(plan["eligible"], key=frequency.__getitem__)]
    assert same_runs(here, run_served(tmp_path / "served", **settings))


def test_a_class_has_an_instance_for_each_who_asks(tmp_path):
    one, other = (solver_of(of(own("Greedy(depth=3)"))) for _ in range(2))
    assert one is not other
    exact_run = run_app(tmp_path / "exact", **SMALL, **PLANNED)
    assert same_weights(exact_run, run_app(tmp_path / "own", **SMALL, **PLANNED, plan_solver=own("Greedy")))
    assert isinstance(solver_of(of("sca")), SCA)
    assert solver_of(of("exact")) is exact


class Turns:
    """Begins with another client each time."""

    def __init__(self):
        self.first = 0

    def __call__(self, problem):
        best = best_choice(problem)
        worth = -np.roll(np.arange(problem.clients, dtype=float), self.first)
        selected, skipped = choose(problem, best.eligible, worth)
        self.first += 1
        return with_best_choices(problem, best, selected, why_not(best.eligible, best.reason, skipped))


class Unsavable(Turns):
    def __call__(self, problem):
        self.lock = threading.Lock()
        return super().__call__(problem)


class OddState(Turns):
    def state_dict(self):
        return {"first": threading.Lock()}

    def load_state_dict(self, state):
        pass


@dataclass(frozen=True)
class Frozen:
    depth: int = 3

    def __call__(self, problem):
        return exact(problem)


class Slotted:
    __slots__ = ()

    def __call__(self, problem):
        return exact(problem)


class SlottedWithState:
    __slots__ = ("calls",)

    def __init__(self):
        self.calls = 0

    def __call__(self, problem):
        self.calls += 1
        return exact(problem)

    def state_dict(self):
        return {"calls": self.calls}

    def load_state_dict(self, state):
        self.calls = state["calls"]


@pytest.mark.parametrize("name", ["Frozen(depth=2)", "Slotted", "SlottedWithState", "slow_first", "Turns", "SCA"])
def test_a_run_goes_on_whatever_it_is_made_of(tmp_path, name):
    name = f"{SCA.__module__}:SCA(max_iterations=60)" if name == "SCA" else own(name)
    folder = run_app(tmp_path / "run", **SMALL | PLANNED | {"max_overlap": 1, "plan_solver": name, "global_rounds": 1})
    assert main([f"resume={folder}", "global-rounds=2"]) == 0
    assert len(lines(folder, "global")) == 2


def test_what_it_keeps_from_call_to_call_survives_an_interruption(tmp_path):
    settings = SMALL | PLANNED | {"max_overlap": 1, "plan_solver": own("Turns")}
    straight = run_app(tmp_path / "straight", **settings | {"global_rounds": 3})
    halted = run_app(tmp_path / "halted", **settings | {"global_rounds": 1})
    assert main([f"resume={halted}", "global-rounds=3"]) == 0
    assert same_runs(straight, halted)
    selected = [plan["selected"] for line in lines(straight, "edge") for plan in line["plans"]]
    assert len(set(map(tuple, selected))) > 2  # it does take turns


@pytest.mark.parametrize(
    ("name", "allowed"),
    [
        ("fails", "a function that does not fail (KeyError: 'no such column')"),
        ("breaks_a_limit", "a function whose plans keep all limits ("),
        (
            "Unsavable",
            "one that can be saved (UnsavableError: Unsavable.lock is a lock, which can't be saved: give the ",
        ),
        ("OddState", "one that can be saved (UnsavableError: OddState.state_dict() holds a lock, which can't be saved"),
        ("returns_nothing", "a function that returns a Plan, not a NoneType"),
        ("PLANNED", "a function from a Problem to a Plan, not a dict"),
        ("Greedy(depth='x')", "what Greedy takes (TypeError: "),
        ("missing", "what can be imported (AttributeError: "),
    ],
)
def test_one_that_is_none_ends_a_run_before_anything_is_written(tmp_path, capsys, name, allowed):
    assert (
        main([f"plan.solver={own(name)}", "algorithm=rawhfl", "num-clients=4", f"output-dir={tmp_path / 'run'}"]) == 2
    )
    error = capsys.readouterr().err
    assert f"error: plan.solver = {own(name)!r}: allowed is {allowed}" in error
    assert error.splitlines()[-1].startswith("error: ")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("text", ["best", "exact(2)", "power-of-choice(6)", "", "a:b:c"])
def test_a_name_of_none_is_refused(text):
    with pytest.raises(
        UserError,
        match=r"^plan.solver = .* allowed is exact, sca, random, .*, tifl, oort, or ",
    ):
        of(text)
