"""A strategy's state comes back as it was, or is refused."""

import random
from collections import Counter, OrderedDict, defaultdict, namedtuple
from functools import partial

import numpy as np
import pytest
from flwr import serverapp
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, FedAdam, FedAvg
from torch import nn

from espalier.strategies.state import built_attributes, restore_strategy_state, strategy_state

Pair = namedtuple("Pair", "left right")


class Holding(FedAvg):
    def __init__(self, held):
        super().__init__()
        self.held = held


@pytest.mark.parametrize("held", [3, 0.5, "a", None, [1, (2, "b")], {"a": {"b": [1.5]}}, np.float32(2)])
def test_plain_data_come_back_as_they_were(held):
    state = strategy_state(Holding(held))
    new = Holding(None)
    restore_strategy_state(new, state, built_attributes(new))
    assert new.held == held
    assert type(new.held) is type(held)


class Spent:
    """Keeps itself, as Flower's accountants of privacy do."""

    def __init__(self):
        self.rounds = {1, 2}

    def state_dict(self):
        return {"rounds": sorted(self.rounds)}

    def load_state_dict(self, state):
        self.rounds = set(state["rounds"])


def test_what_keeps_itself_goes_on_where_it_was():
    used, new = Holding(Spent()), Holding(Spent())
    used.held.rounds.add(3)
    own = new.held
    restore_strategy_state(new, strategy_state(used), built_attributes(new))
    assert new.held is own
    assert own.rounds == {1, 2, 3}


def test_what_keeps_itself_and_tells_what_can_not_be_saved_is_named():
    with pytest.raises(TypeError, match=r"Holding\.held\.state_dict\(\) holds a Tensor, which can't be saved"):
        strategy_state(Holding(nn.Linear(2, 2)))


def test_what_keeps_itself_has_to_be_there_when_a_run_goes_on():
    saved = strategy_state(Holding(Spent()))
    with pytest.raises(ValueError, match=r"Holding\.held is made during a run: make it in __init__"):
        restore_strategy_state(Holding(None), saved, built_attributes(Holding(None)))


def test_the_privacy_that_flowers_accountant_counts_goes_on():
    settings = serverapp.PrivacyConfig(
        1e-3, 4, serverapp.NeighboringRelation.ADD_OR_REMOVE_ONE, serverapp.SamplingMethod.NO_AMPLIFICATION
    )

    def private():
        accountant = serverapp.RdpAccountant(settings)
        return DifferentialPrivacyServerSideFixedClipping(FedAvg(), 1.0, 1.0, 4, accountant=accountant)

    used, new = private(), private()
    used.accountant.compose(serverapp.GaussianPrivacyEvent(1.0, 4, 4))
    assert used.privacy_spent().epsilon > 1
    restore_strategy_state(new, strategy_state(used), built_attributes(new))
    assert new.privacy_spent().epsilon == used.privacy_spent().epsilon


@pytest.mark.parametrize("make", [random.Random, np.random.default_rng])
def test_generators_go_on_where_they_were(make):
    used = make(5)
    used.random()
    state = strategy_state(Holding(used))
    expected, new = used.random(), Holding(make(0))
    restore_strategy_state(new, state, built_attributes(new))
    assert new.held.random() == expected


@pytest.mark.parametrize(
    "held",
    [
        {1, 2},
        Counter("abc"),
        defaultdict(int),
        OrderedDict(a=1),
        Pair(1, 2),
        [np.random.default_rng(0)],
        {"a": random.Random(0)},
        {"a": FedAvg()},
    ],
    ids=lambda held: type(held).__name__,
)
def test_what_would_come_back_as_something_else_is_refused(held):
    with pytest.raises(TypeError, match=r"Holding\.held is a \w+, which can't be saved: give the class methods"):
        strategy_state(Holding(held))


class Callable:
    def __call__(self, records, key):
        return records[0]


@pytest.mark.parametrize(
    "held", [len, lambda x: x, partial(int, base=2), dict, FedAvg.aggregate_train, Callable(), np.maximum]
)
def test_functions_and_classes_belong_to_the_code(held):
    assert "held" not in strategy_state(Holding(held))


def test_a_strategy_inside_of_another_has_its_state_in_it():
    def wrapped():
        return DifferentialPrivacyServerSideFixedClipping(FedAdam(), 0.1, 1.0, 2)

    used, new = wrapped(), wrapped()
    used.strategy.m_t = {"w": np.ones(2)}
    restore_strategy_state(new, strategy_state(used), built_attributes(new))
    np.testing.assert_array_equal(new.strategy.m_t["w"], [1, 1])


class Growing(FedAvg):
    """Has its momentum from the first round on only."""

    def step(self):
        self.velocity = getattr(self, "velocity", 0.0) + 1.0


def test_what_a_strategy_has_had_since_is_gone_with_a_state_from_before():
    strategy = DifferentialPrivacyServerSideFixedClipping(Growing(), 0.1, 1.0, 2)
    built, new = built_attributes(strategy), strategy_state(strategy)
    strategy.strategy.step()
    strategy.extra = 1
    used = strategy_state(strategy)
    restore_strategy_state(strategy, new, built)
    assert strategy_state(strategy) == new
    strategy.strategy.step()
    restore_strategy_state(strategy, used, built)
    assert (strategy.strategy.velocity, strategy.extra) == (1.0, 1)


def test_a_state_of_other_settings_is_refused_and_one_of_a_users_own_is_not():
    strategy = FedAdam(eta=0.1)
    built = built_attributes(strategy)
    for wrong in ({"eta": 0.2}, {"eta": "0.1"}, {"min_train_nodes": None}):
        with pytest.raises(ValueError, match=r"FedAdam\.\w+ is .* in this run"):
            restore_strategy_state(strategy, strategy_state(strategy) | wrong, built)
    with pytest.raises(ValueError, match=r"FedAdam\.aggregate_train is no data"):
        restore_strategy_state(strategy, {"aggregate_train": 1}, built)
    own = Holding(0.1)
    restore_strategy_state(own, strategy_state(own) | {"held": 0.2, "min_train_nodes": 3}, built_attributes(own))
    assert (own.held, own.min_train_nodes) == (0.2, 3)


class Wrapping(FedAvg):
    def __init__(self, strategy):
        super().__init__()
        self.strategy = strategy


class SavesItself(FedAvg):
    """Has a state that is none of its attributes."""

    def __init__(self):
        super().__init__()
        self.seen = {3}

    def state_dict(self):
        return {"seen so far": sorted(self.seen)}

    def load_state_dict(self, state):
        self.seen = set(state["seen so far"])


def test_a_strategy_inside_of_another_is_asked_for_its_own_state_and_gets_it_back():
    used = Wrapping(SavesItself())
    used.strategy.seen |= {5}
    new = Wrapping(SavesItself())
    built = built_attributes(new)
    restore_strategy_state(new, strategy_state(used), built)
    assert new.strategy.seen == {3, 5}
    assert vars(new.strategy).keys() == vars(SavesItself()).keys()
