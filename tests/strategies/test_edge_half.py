"""What clients tell an edge's half is judged as their models are."""

import torch

from espalier.strategies import Guard, UpdateGuard
from espalier.strategies.edge_half import GuardOfTold


def test_a_node_that_is_alone_in_rounds_gains_nothing_by_trying_again():
    guard = UpdateGuard(Guard("leave-out", 10.0))
    guard.count_nodes(8)
    told, start = GuardOfTold(lambda: guard), {"w": torch.ones(4)}
    for node_id in range(1, 8):
        assert told.within_bounds({node_id: {"w": torch.ones(4)}}, start)[1] == {}
    for _ in range(6):
        kept, faults = told.within_bounds({9: {"w": torch.full((4,), 1e5)}}, start)
        assert kept == {}
        assert faults[9].endswith("its update is 2e+05 long, where 20 is allowed (guard.update-norm)")


def test_what_is_told_first_need_not_be_of_the_models_kind():
    told, start = GuardOfTold(lambda: UpdateGuard(Guard("leave-out", 10.0))), {"w": torch.ones(4)}
    assert told.within_bounds({1: {"steps": torch.tensor(1e6)}}, start)[1] == {}
    assert list(told.within_bounds({1: {"steps": torch.tensor(1e20)}}, start)[1]) == [1]
