"""A drift is a step beside the optimizer's; a pull is part of the gradient."""

import pytest
import torch
from torch import nn

from espalier.clients.shared.correction import CorrectedSteps, Correction

RATE, MOMENTUM, STEPS = 0.1, 0.9, 20


def moved_by(correction, gradient=0.0):
    weight = nn.Parameter(torch.zeros(1, dtype=torch.float64))
    optimizer = torch.optim.SGD([weight], lr=RATE, momentum=MOMENTUM)
    steps = CorrectedSteps(optimizer, [("w", weight)], correction)
    for _ in range(STEPS):
        weight.grad = torch.full_like(weight, gradient)
        steps.step()
    return float(weight.detach())


def test_no_momentum_multiplies_a_drift():
    drift = Correction(drift={"w": torch.ones(1)})
    assert moved_by(drift) == pytest.approx(-RATE * STEPS)
    # In the gradient it would move the weight some six times as far, and ten times in the end.
    through = moved_by(Correction(), gradient=1.0)
    coefficients = [(1 - MOMENTUM**k) / (1 - MOMENTUM) for k in range(1, STEPS + 1)]
    assert through == pytest.approx(-RATE * sum(coefficients))
    assert through / moved_by(drift) > 5
    assert moved_by(drift, gradient=1.0) == pytest.approx(through - RATE * STEPS)


def test_a_pull_goes_through_the_momentum():
    weight, buffer = 0.0, 0.0
    for _ in range(STEPS):
        buffer = MOMENTUM * buffer + 0.5 * (weight - 1.0)
        weight -= RATE * buffer
    anchor = {"w": torch.ones(1, dtype=torch.float64)}
    assert moved_by(Correction(pull=0.5, anchor=anchor)) == pytest.approx(weight)


def test_a_pull_without_an_anchor_is_refused_and_one_to_nothing_yet_is_not():
    with pytest.raises(ValueError, match=r"Correction\(pull=0.1\) draws nowhere: give the anchor too"):
        Correction(pull=0.1)
    assert Correction(pull=0.1, anchor={}).pull == 0.1
    assert Correction().pulled(0.1, {}).pull == 0.1
