"""What a problem accepts, and what it says about the rest."""

from itertools import combinations, product

import numpy as np
import pytest

from espalier.strategies.allocation import Problem

GIVEN = {
    "gain": [1e-11, 2e-12, 3e-12, 4e-13],
    "max_frequency_hz": 1.5e9,
    "max_power_watts": [0.1, 0.2, 0.3, 0.4],
    "energy_budget_joules": 1.0,
    "cycles_per_local_round": 1.4e7,
    "payload_bits": 7_248_384,
    "clients_per_cell": 2,
    "deadline_seconds": 2.0,
    "max_local_rounds": 5,
    "bandwidth_hz": 540e3,
    "noise_watts": 2e-15,
    "capacitance": 2e-28,
    "theta": 0.4,
}


def test_numbers_become_arrays_of_one_entry_per_client():
    problem = Problem(**GIVEN)
    assert problem.clients == 4
    assert problem.options == 1
    assert problem.max_frequency_hz.tolist() == [1.5e9] * 4
    assert problem.payload_bits.shape == problem.idle_seconds.shape == (4, 1)
    assert problem.cell.tolist() == [0] * 4
    assert not problem.gain.flags.writeable


def test_a_value_per_client_or_per_option_lines_up():
    given = {"cycles_per_local_round": [1e6, 2e6, 3e6, 4e6], "payload_bits": [[10, 20, 30, 40]], "idle_seconds": 1.0}
    problem = Problem(**GIVEN | given)
    assert problem.options == 4
    assert problem.cycles_per_local_round[:, 2].tolist() == [1e6, 2e6, 3e6, 4e6]
    assert problem.payload_bits[2].tolist() == [10, 20, 30, 40]
    assert problem.idle_seconds.shape == (4, 4)


def test_a_client_may_be_worth_less_than_nothing_and_by_default_is_worth_nothing():
    assert Problem(**GIVEN).worth.tolist() == [0.0] * 4
    assert Problem(**GIVEN | {"worth": [1, -2.5, 0, 3]}).worth.tolist() == [1.0, -2.5, 0.0, 3.0]


def test_what_is_given_stays_the_callers():
    gain = np.array(GIVEN["gain"])
    problem = Problem(**GIVEN | {"gain": gain})
    gain[0] = 7
    assert problem.gain[0] == 1e-11
    previous = np.zeros(4, dtype=bool)
    problem = Problem(**GIVEN | {"previous": previous})
    previous[0] = True
    assert not problem.previous.any()


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"gain": [1e-11, -2e-12, 3e-12, 4e-13]}, "gain[1] = -2e-12: allowed is a finite number above 0"),
        ({"worth": [1.0, -2.0, np.inf, 0.0]}, "worth[2] = inf: allowed is a finite number"),
        ({"worth": [1.0, 2.0]}, "shape of worth = (2,): allowed is a number or (4,)"),
        ({"gain": [1e-11, 0.0, 3e-12, 4e-13]}, "gain[1] = 0.0: allowed is a finite number above 0"),
        ({"gain": [1e-11, 1e-11, 1e-11, np.nan]}, "gain[3] = nan: allowed is a finite number above 0"),
        ({"gain": 1e-11}, "shape of gain = (): allowed is (U,), one number per client, U at least 1"),
        ({"gain": []}, "shape of gain = (0,): allowed is (U,), one number per client, U at least 1"),
        ({"gain": ["a", "b"]}, "gain = ['a', 'b']: allowed is numbers"),
        ({"max_power_watts": [0.1, 0.2]}, "shape of max_power_watts = (2,): allowed is a number or (4,)"),
        ({"max_frequency_hz": 0}, "max_frequency_hz[0] = 0.0: allowed is a finite number above 0"),
        ({"energy_budget_joules": -1}, "energy_budget_joules[0] = -1.0: allowed is a number above 0"),
        ({"idle_seconds": -1}, "idle_seconds[0] = -1.0: allowed is a finite number of 0 or more"),
        ({"payload_bits": [[1, 2, 0]]}, "payload_bits[0, 2] = 0.0: allowed is a finite number above 0"),
        (
            {"payload_bits": np.ones((3, 2))},
            "shape of payload_bits = (3, 2): allowed is a number, (4,) or (4, 2)",
        ),
        (
            {"payload_bits": np.ones((4, 2)), "cycles_per_local_round": np.ones((4, 3))},
            "number of options = [2, 3]: allowed is the same for all of cycles_per_local_round, payload_bits, "
            "payload_bits_per_local_round, idle_seconds, idle_seconds_per_local_round",
        ),
        ({"bandwidth_hz": 0.0}, "bandwidth_hz = 0.0: allowed is a finite number above 0"),
        ({"noise_watts": -1.0}, "noise_watts = -1.0: allowed is a finite number above 0"),
        ({"deadline_seconds": np.inf}, "deadline_seconds = inf: allowed is a finite number above 0"),
        ({"capacitance": "small"}, "capacitance = small: allowed is a finite number above 0"),
        ({"theta": 1.1}, "theta = 1.1: allowed is a number from 0 to 1"),
        ({"theta": -0.1}, "theta = -0.1: allowed is a number from 0 to 1"),
        (
            {"min_frequency_hz": [0.0, 1e9, 2e9, 3e9]},
            "min_frequency_hz[2] = 2000000000.0: allowed is a number from 0 to 1.5e+09, its highest frequency",
        ),
        ({"min_frequency_hz": -1.0}, "min_frequency_hz[0] = -1.0: allowed is a finite number of 0 or more"),
        ({"max_local_rounds": 0}, "max_local_rounds = 0: allowed is an integer from 1 to 1000000000"),
        ({"max_local_rounds": 2.5}, "max_local_rounds = 2.5: allowed is an integer from 1 to 1000000000"),
        ({"gain": [[1e-11], [1e-11, 2e-12]]}, "gain = [[1e-11], [1e-11, 2e-12]]: allowed is numbers"),
        ({"cell": [[0], [0, 1]]}, "cell = [[0], [0, 1]]: allowed is 4 indices of 0 or more, one per client"),
        (
            {"previous": np.zeros(200, dtype=int)},
            f"previous = [{'0 ' * 28}...: allowed is None or 4 booleans, one per client",
        ),
        (
            {"max_power_watts": 10**400},
            f"max_power_watts = 1{'0' * 56}...: allowed is numbers",
        ),
        ({"theta": 10**400}, f"theta = 1{'0' * 56}...: allowed is a number from 0 to 1"),
        (
            {"deadline_seconds": np.full(9, 150.0)},
            "deadline_seconds = [150. 150. 150. 150. 150. 150. 150. 150. 150.]: allowed is a finite number above 0",
        ),
        ({"clients_per_cell": 5}, "clients_per_cell = 5: allowed is an integer from 1 to 4: cell 0 has 4 clients"),
        (
            {"cell": [0, 0, 0, 1]},
            "clients_per_cell = 2: allowed is an integer from 1 to 1: cell 1 has 1 clients",
        ),
        ({"cell": [0, 1]}, "cell = [0, 1]: allowed is 4 indices of 0 or more, one per client"),
        ({"cell": [0, 0, 0, -1]}, "cell = [0, 0, 0, -1]: allowed is 4 indices of 0 or more, one per client"),
        ({"cell": [0.0] * 4}, "cell = [0.0, 0.0, 0.0, 0.0]: allowed is 4 indices of 0 or more, one per client"),
        ({"previous": [1, 0, 0, 1]}, "previous = [1, 0, 0, 1]: allowed is None or 4 booleans, one per client"),
        ({"max_overlap": -1}, "max_overlap = -1: allowed is an integer of 0 or more"),
        ({"max_overlap": 0.5}, "max_overlap = 0.5: allowed is an integer of 0 or more"),
        (
            {"max_overlap": 1, "clients_per_cell": 3, "previous": [True, False, True, True]},
            "max_overlap = 1: allowed is an integer of 2 or more: cell 0 has only 1 clients who are not of its "
            "previous round, and 3 are selected",
        ),
        ({"seed": -1}, "seed = -1: allowed is an integer of 0 or more"),
    ],
)
def test_a_bad_value_is_one_line_that_names_it(changes, line):
    with pytest.raises(ValueError) as error:  # noqa: PT011
        Problem(**GIVEN | changes)
    assert str(error.value) == line


@pytest.mark.parametrize(("cell", "wanted"), [([4, 7, 4, 7], 2), ([4, 7, 4, 7], 1), ([0] * 4, 3), ([0] * 4, 2)])
def test_an_overlap_is_allowed_that_some_selection_keeps(cell, wanted):
    for previous in product([False, True], repeat=4):
        in_cells = [[again for again, own in zip(previous, cell, strict=True) if own == one] for one in set(cell)]
        if max(map(sum, in_cells)) > wanted:
            continue  # not of a round with so many
        least = max(min(map(sum, combinations(inside, wanted))) for inside in in_cells)
        given = GIVEN | {"cell": cell, "clients_per_cell": wanted, "previous": previous}
        assert Problem(**given, max_overlap=least).max_overlap == least
        if least:
            with pytest.raises(ValueError, match=f"allowed is an integer of {least} or more"):
                Problem(**given, max_overlap=least - 1)


def test_no_limit_on_energy_and_an_option_that_a_client_lacks_are_allowed():
    problem = Problem(**GIVEN | {"energy_budget_joules": np.inf, "cycles_per_local_round": [[1e6, np.inf]]})
    assert problem.options == 2
    assert np.isinf(problem.energy_budget_joules).all()
