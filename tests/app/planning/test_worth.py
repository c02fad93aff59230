"""What clients are worth: the built-in values by hand, batteries, one's own function, and whole runs."""

import json
from itertools import chain

import numpy as np
import pytest

from espalier.app.command_line import main
from espalier.app.config.parse import parse_config
from espalier.app.ground.errors import UserError
from espalier.app.planning.worth import Book, Standing, age_value, battery_value, loss_value, value_of
from espalier.strategies.allocation import exact
from tests.app.assembling import config_of, make_world
from tests.app.runs import lines, run_app, same_weights

SIX = {
    "algorithm": "rawhfl",
    "num_clients": 6,
    "num_edges": 1,
    "edge_rounds": 3,
    "selected_per_edge": 2,
    "max_local_rounds": 2,
    "batches_per_epoch": 2,
    "max_overlap": 2,
}
OWN = "tests.app.planning.test_worth"


def last_clients_first(standing: Standing, factor: float = 1.0) -> np.ndarray:
    return factor * standing.clients


def one_too_few(standing: Standing) -> np.ndarray:
    return np.zeros(len(standing.clients) - 1)


def always_fails(standing: Standing) -> np.ndarray:
    raise RuntimeError("no\nidea")


NO_FUNCTION = 3


def book():
    filled = Book()
    filled.add(1, [0, 1], [0.25, 0.5])
    filled.add(2, [1, 2], [0.5, 0.125])
    filled.losses |= {0: 2.0, 1: 0.5}
    return filled


def standing(battery_joules=0.0):
    return book().standing(4, np.array([2, 0, 1, 3]), np.array([10.0, 20.0, 40.0, 10.0]), battery_joules)


# Values.


def test_what_is_known_of_clients_by_hand():
    known = standing(battery_joules=0.75)
    assert known.age.tolist() == [2, 3, 2, 4]
    assert known.joules.tolist() == [0.125, 0.25, 1.0, 0.0]
    assert known.battery_joules.tolist() == [0.625, 0.5, 0.0, 0.75]
    np.testing.assert_allclose(known.battery_share, [5 / 6, 2 / 3, 0, 1])
    np.testing.assert_array_equal(known.loss, [np.nan, 2.0, 0.5, np.nan])
    assert standing().battery_joules.tolist() == [np.inf] * 4
    assert standing().battery_share.tolist() == [1.0] * 4


def test_the_built_in_values_by_hand():
    # |B| sqrt(loss^2) is 20 * 2 = 40 and 40 * 0.5 = 20; who has told no loss counts like the largest.
    assert loss_value(standing()).tolist() == [1.0, 1.0, 0.5, 1.0]
    assert age_value(standing()).tolist() == [2.0, 3.0, 2.0, 4.0]
    np.testing.assert_allclose(battery_value(standing(battery_joules=0.75)), [5 / 6, 2 / 3, 0, 1])


@pytest.mark.parametrize("losses", [{}, {0: 0.0}, {0: 0.0, 1: 0.0, 2: 0.0, 3: 0.0}])
def test_losses_that_say_nothing_are_no_trouble(losses):
    known = Book(losses=losses).standing(1, np.arange(4), np.full(4, 10.0), 0.0)
    assert loss_value(known).tolist() == [0.0 if client in losses else 1.0 for client in range(4)]


def test_the_book_survives_an_interruption():
    again = Book()
    again.load_state_dict(book().state_dict())
    assert again == book()


# Plans.


def world(**settings):
    config = config_of(**SIX | settings)
    return make_world(config, {"edge-0": list(range(6))}, {n: n for n in range(6)}, [100] * 6)


def rounds(world, number):
    """Carry out edge rounds and return whom each selected."""
    edge, everybody, chosen = world.edges["edge-0"], list(range(6)), []
    for server_round in range(1, number + 1):
        plan = exact(edge.problem(server_round, everybody))
        edge.carry_out(server_round, everybody, plan)
        chosen.append(np.flatnonzero(plan.selected).tolist())
    return chosen


def test_with_age_clients_take_turns():
    chosen = rounds(world(plan_value="age", plan_value_weight=100.0), 9)
    for first in range(0, 9, 3):
        assert sorted(chain(*chosen[first : first + 3])) == list(range(6))
    counts = np.bincount(list(chain(*rounds(world(radio_fading="static"), 9))), minlength=6)
    assert sorted(counts.tolist()) == [0, 0, 0, 0, 9, 9]  # the paper's way, with as much overlap


def test_with_loss_those_whom_the_model_fits_worst_are_selected():
    values = world(plan_value="loss", plan_value_weight=100.0)
    edge = values.edges["edge-0"]
    edge.learned(dict(enumerate([0.3, 0.9, 0.1, 0.5, 0.8, 0.2])))
    problem = edge.problem(1, list(range(6)))
    np.testing.assert_allclose(problem.worth, 100 * np.array([3, 9, 1, 5, 8, 2]) / 9, rtol=1e-12)
    assert np.flatnonzero(exact(problem).selected).tolist() == [1, 4]


def test_nobody_spends_more_than_its_battery_has():
    battery = 3e-6
    plain, limited = (world(plan_deadline_seconds=20.0, plan_battery_joules=joules) for joules in (0.0, battery))
    assert all(len(selected) == 2 for selected in rounds(plain, 60))
    assert plain.energy.total_joules.max() > 5 * battery
    chosen = rounds(limited, 60)
    assert (limited.energy.total_joules <= battery).all()
    assert len(chosen[0]) == 2
    assert sum(map(len, chosen[-20:])) < 20


def test_who_has_an_empty_battery_is_out():
    values = world(plan_battery_joules=10.0)
    edge = values.edges["edge-0"]
    edge._book.add(1, range(6), [10.0, 0.0, 10.0, 11.0, 10.0, 10.0])
    plan = exact(edge.problem(2, list(range(6))))
    assert plan.eligible.tolist() == [False, True, False, False, False, False]
    assert plan.reason.tolist() == ["energy", "selected", "energy", "energy", "energy", "energy"]
    assert not edge._at_full_power[[0, 2, 3, 4, 5]].any()


def test_with_battery_the_fullest_are_selected():
    values = world(plan_value="battery", plan_battery_joules=10.0, plan_value_weight=1e6)
    edge = values.edges["edge-0"]
    edge._book.add(1, range(6), [3.0, 1.0, 2.0, 5.0, 0.5, 4.0])
    problem = edge.problem(2, list(range(6)))
    np.testing.assert_allclose(problem.worth, 1e6 * np.array([0.7, 0.9, 0.8, 0.5, 0.95, 0.6]), rtol=1e-12)
    assert np.flatnonzero(exact(problem).selected).tolist() == [1, 4]


def test_by_default_the_problem_is_as_it_was():
    values = world()
    assert not values.keeps_books
    edge = values.edges["edge-0"]
    rounds(values, 2)
    assert edge.state_dict().keys() == {"previous"}
    problem = edge.problem(3, list(range(6)))
    assert problem.worth.tolist() == [0.0] * 6
    plain = values.problem(3, np.arange(6), problem.previous, problem.seed)
    for name, value in vars(plain).items():
        np.testing.assert_array_equal(getattr(problem, name), value)


# One's own.


@pytest.mark.parametrize("value", [f"{OWN}:last_clients_first", f"{OWN}:last_clients_first(factor=3.0)"])
def test_a_function_of_ones_own_decides(value):
    assert rounds(world(plan_value=value, plan_value_weight=100.0), 1) == [[4, 5]]


@pytest.mark.parametrize(
    ("value", "line"),
    [
        ("one_too_few", "a function that returns 6 finite numbers, one for each client"),
        ("always_fails", "a function that does not fail (RuntimeError: no idea)"),
    ],
)
def test_a_function_that_is_of_no_use_ends_the_run_in_one_line(value, line):
    with pytest.raises(UserError) as error:
        rounds(world(plan_value=f"{OWN}:{value}"), 1)
    assert str(error.value) == f"plan.value = '{OWN}:{value}': allowed is {line}"


@pytest.mark.parametrize(
    ("value", "line"),
    [
        ("NO_FUNCTION", "a function of a Standing, not a int"),
        ("missing", "what can be imported (AttributeError: module 'tests.app.planning.test_worth' has no attribute"),
    ],
)
def test_what_is_no_function_is_refused_before_training(value, line):
    with pytest.raises(UserError) as error:
        value_of(parse_config({"plan.value": f"{OWN}:{value}"}).plan)
    assert str(error.value).startswith(f"plan.value = '{OWN}:{value}': allowed is {line}")


@pytest.mark.parametrize("value", ["best", "age(factor=2)", "a:b:c", 5, "my.module:"])
def test_what_names_nothing_is_refused(value):
    with pytest.raises(UserError, match=r"^plan\.value = .*: allowed is uniform, loss, age, battery, or package"):
        parse_config({"plan.value": value})


def test_a_battery_that_is_to_count_has_to_be_there():
    with pytest.raises(UserError, match=r"^plan\.value = 'battery': allowed is 'battery' with plan\.battery-joules ab"):
        parse_config({"algorithm": "rawhfl", "plan.value": "battery"})


# Whole runs.


@pytest.mark.parametrize(
    "settings",
    [
        {"plan_value": "loss", "plan_value_weight": 5.0},
        {"algorithm": "hsfl", "selection": "resource-aware", "plan_value": "loss", "plan_value_weight": 5.0},
        {"algorithm": "h-fedavg", "selection": "resource-aware", "plan_value": "age", "plan_battery_joules": 0.005},
    ],
)
def test_what_was_learned_of_clients_survives_an_interruption(tmp_path, settings):
    settings = SIX | {"engine": "in-process", "edge_rounds": 2} | settings
    whole = run_app(tmp_path / "whole", **settings, global_rounds=2)
    first = run_app(tmp_path / "first", **settings, global_rounds=1)
    assert main([f"resume={first}", "global-rounds=2"]) == 0
    assert same_weights(whole, first)
    plans = [plan for line in lines(whole, "edge") for plan in line["plans"]]
    assert json.dumps(plans) == json.dumps([plan for line in lines(first, "edge") for plan in line["plans"]])
