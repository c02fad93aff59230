"""Plans that differ a hundredfold: whoever is told to train longer goes farther, and is no liar for that."""

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.allocation import paper_problem
from espalier.strategies import AccumulatedGradients, ResourceAware, UpdateGuard, ask_profiles
from espalier.strategies.allocation import exact
from espalier.strategies.split import Relay, SplitFedV1, SplitFedV2
from tests.strategies.guards.test_guards import arrays_as, scaled
from tests.strategies.guards.tight import tight
from tests.strategies.split.federation import Federation
from tests.strategies.test_hostile import reasons, telling
from tests.strategies.test_resource_aware import Fixed, evaluation

ROUNDS = (1, 1, 1, 1, 60)


class Told(Fixed):
    """Resources of clients that can all take part; `solve` tells each what to train."""

    def __init__(self, rounds):
        super().__init__()
        self.rounds = np.array(rounds)

    def problem(self, server_round, clients):
        return paper_problem(seed=0, cells=1, clients_in_cell=len(clients), clients_per_cell=len(clients))

    def solve(self, problem):
        return replace(exact(problem), local_rounds=self.rounds)


def split(kind, cut):
    return lambda federation: federation.split(kind, cut)("edge-0", len(ROUNDS))


EDGES = {
    "accumulated": lambda federation: AccumulatedGradients(0.05, evaluation()),
    "fedavg": lambda federation: evaluation(),
    "sfl-v1": split(SplitFedV1, lambda node_id: 2),
    "sfl-v2": split(SplitFedV2, 2),
    "sl": split(Relay, 2),
}


def run(edge, *, rounds=ROUNDS, app=None):
    # Activations of split training grow with the rate, and are held against each other.
    federation = Federation(
        sizes=(16,) * len(rounds), learning_rate=0.05 if edge in ("accumulated", "fedavg") else 0.01
    )
    resources = Told(rounds)
    grid = federation.grid(app(federation) if app else None)

    def make_edge(name, size):
        return ResourceAware(EDGES[edge](federation), resources, resources.solve)

    return federation.run(make_edge, grid=grid, guard=tight())


@pytest.mark.parametrize("edge", EDGES)
@pytest.mark.parametrize("rounds", [ROUNDS, (1, 60), (60, 1, 1, 1, 1)])
def test_who_trains_longest_by_its_plan_is_not_left_out(edge, rounds):
    for outcome in run(edge, rounds=rounds):
        assert outcome.edges["edge-0"].failures == []
        assert reasons(outcome) == []


@pytest.mark.parametrize("liar", range(len(ROUNDS)))
def test_who_goes_too_far_for_its_own_plan_is_left_out(liar):
    lie = arrays_as(scaled(1e3))
    nodes = [profile.node_id for profile in ask_profiles(Federation(sizes=(16,) * len(ROUNDS)).grid())]
    for outcome in run("fedavg", app=lambda federation: telling(federation.app(), lie, liar=liar)):
        assert [failure.node_id for failure in outcome.edges["edge-0"].failures] == [nodes[liar]]
        assert "guard.update-norm" in reasons(outcome)[0]


def judged(guard, lengths, rounds=None):
    """Return the numbers of those who are refused, of nodes whose updates of a model of ones have these lengths."""
    sent = {"w": np.ones(1)}
    guard.begin_round(None if rounds is None else dict(enumerate(rounds)))
    return list(guard.judge({i: (sent, {"w": np.ones(1) + length}) for i, length in enumerate(lengths)}))


def test_an_update_is_held_against_the_others_as_a_whole_and_per_local_round():
    lengths, rounds = [1.0, 1.2, 0.9, 30.0], [1, 1, 1, 40]
    assert judged(UpdateGuard(tight()), lengths) == [3]
    assert judged(UpdateGuard(tight()), lengths, rounds) == []
    assert judged(UpdateGuard(tight()), lengths, [40, 1, 1, 1]) == [3]
    assert judged(UpdateGuard(tight()), [1.0, 1.2, 0.9, 500.0], rounds) == [3]
    # Close to an optimum many local rounds go no farther than one, which is not too long then.
    assert judged(UpdateGuard(tight()), [1.0, 1.0, 1.0, 1.0], [50, 50, 50, 1]) == []


@pytest.mark.parametrize("told", [1, 5, 10, 50])
def test_a_plan_of_many_local_rounds_allows_nobody_to_erase_the_model(told):
    honest = {i: ({"w": np.ones(4)}, {"w": np.ones(4) + 0.05 * (-1) ** i}) for i in range(9)}
    guard = UpdateGuard(tight())
    guard.begin_round(dict.fromkeys(range(9), 1) | {9: told})
    assert list(guard.judge(honest | {9: ({"w": np.ones(4)}, {"w": np.zeros(4)})})) == [9]


def test_after_rounds_without_plans_few_updates_have_the_bound_of_those_rounds():
    guard = UpdateGuard(tight())
    assert judged(guard, [0.05, 0.05, 0.05]) == []
    assert judged(guard, [0.05, 9.0], [40, 40]) == [1]


def test_of_few_updates_the_rounds_before_say_what_is_usual_per_local_round():
    guard, resumed = UpdateGuard(tight()), UpdateGuard(tight())
    assert judged(guard, [1.0, 1.2, 0.9], [1, 1, 1]) == []
    resumed.load_state_dict(guard.state_dict())
    for one in (guard, resumed):
        assert judged(one, [30.0, 45.0], [40, 4]) == [1]
