"""Halves of an algorithm of one's own: what they may hold and return, and what is said where they may not."""

import logging
from collections import defaultdict
from dataclasses import replace
from functools import partial
from typing import ClassVar

import pytest
import torch

from espalier.app.algorithms.fedavg import FEDAVG
from espalier.app.algorithms.split_edges import server_block_per_client
from espalier.app.algorithms.strategies import edge_of_halves, edge_strategy
from espalier.app.command_line import main
from espalier.clients.half import ClientHalf
from espalier.clients.shared.local_round import Done, Pass
from espalier.strategies import AlgorithmEdge, EdgeHalf
from espalier.strategies.split.algorithm import SplitAlgorithm
from espalier.strategies.state import UnsavableError
from tests.app.runs import run_app, same_weights, summary

SHORT = {"num_clients": 3, "global_rounds": 3}


def own(rule, half=EdgeHalf):
    client = ClientHalf(rule=rule)
    return replace(
        FEDAVG,
        strategy_key="edge-strategy",
        client=client,
        make_edge=edge_of_halves(client, lambda site: half()),
    )


def drawn(begun):
    """Draw the client's weights to those that its last models had in the mean, by a number that the edge sends."""
    learned = yield Pass()
    by = float(begun.sent["by"])
    mean = {name: begun.sent.get(name, weights) for name, weights in begun.trained.items()}
    moved = {name: torch.lerp(learned.weights[name], mean[name].to(learned.weights[name]), by) for name in mean}
    return Done({**learned.weights, **moved}, told={"norm": torch.tensor(1.0)})


class Remembers(EdgeHalf):
    """Keeps models by client in lists, and a number."""

    def __init__(self):
        self.models, self.rounds = {}, 0

    def sent(self, node_id):
        mine = self.models.get(node_id, [])
        mean = {name: sum(one[name] for one in mine) / len(mine) for name in mine[0]} if mine else {}
        return {**mean, "by": 0.25 * self.rounds}

    def averaged(self, gathered):
        for node_id, model in gathered.models.items():
            self.models.setdefault(node_id, []).append({name: weights.clone() for name, weights in model.items()})
        self.rounds += 1
        return gathered.models


REMEMBERS = own(drawn, Remembers)


def test_lists_of_weights_by_client_are_saved_as_they_are(tmp_path):
    straight = run_app(tmp_path / "straight", algorithm=f"{__name__}:REMEMBERS", **SHORT)
    resumed = run_app(tmp_path / "resumed", algorithm=f"{__name__}:REMEMBERS", **SHORT | {"global_rounds": 1})
    assert main([f"resume={resumed}", "global-rounds=3"]) == 0
    assert same_weights(straight, resumed)
    plain = run_app(tmp_path / "plain", algorithm="fedavg", **SHORT)
    assert not same_weights(straight, plain)


@pytest.mark.parametrize(
    ("value", "what"),
    [(defaultdict(list), "defaultdict"), ({7: torch.ones(2)}, "Tensor"), ([torch.ones(2)], "Tensor"), ({1}, "set")],
)
def test_what_would_come_back_as_another_is_refused_by_name(value, what):
    half = EdgeHalf()
    half.seen = value
    with pytest.raises(UnsavableError, match=rf"EdgeHalf\.seen is a {what}, which can't be saved"):
        half.state_dict()


class Unsavable(EdgeHalf):
    """Keeps a set."""

    def __init__(self):
        self.seen = {1, 2}


UNSAVABLE = own(drawn, Unsavable)


def test_a_half_that_can_not_be_saved_is_refused_before_training(tmp_path, capsys):
    assert main([f"algorithm={__name__}:UNSAVABLE", f"output-dir={tmp_path / 'run'}"]) == 2
    said = (
        "Unsavable.seen is a set, which can't be saved: give the class methods state_dict() and load_state_dict(state)"
    )
    assert capsys.readouterr().err == f"error: {said}\n"
    assert not (tmp_path / "run").exists()


def returns_nothing(begun):
    yield Pass()


def makes_no_pass(begun):
    return Done(begun.start)
    yield


def yields_another(begun):
    yield "a pass"


def yields_the_class(begun):
    return Done((yield Pass).weights)


def has_no_yield(begun):
    return Done(begun.start)


def returns_what_it_learned(begun):
    return Done((yield Pass()))


NOTHING, NO_PASS, ANOTHER, CLASS_PASS, NO_YIELD, LEARNED = map(
    own,
    (returns_nothing, makes_no_pass, yields_another, yields_the_class, has_no_yield, returns_what_it_learned),
)
HAS_NO_YIELD = "has no yield, and returned Done: it has to yield a Pass first"


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("NOTHING", "BadRuleError: the algorithm's rule returned NoneType: allowed is Done, after a pass"),
        ("NO_PASS", "BadRuleError: the algorithm's rule returned before any pass: allowed is Done, after a pass"),
        ("ANOTHER", "BadRuleError: the algorithm's rule yielded str: allowed is Pass()"),
        ("CLASS_PASS", "BadRuleError: the algorithm's rule yielded the class Pass: allowed is Pass()"),
        ("NO_YIELD", f"BadRuleError: the algorithm's rule {HAS_NO_YIELD}"),
        ("LEARNED", "TypeError: Done.weights is of Learned: allowed are tensors and numbers by name"),
    ],
)
def test_a_rule_that_keeps_to_no_conversation_is_told_so(name, reason, tmp_path, caplog):
    settings = [f"algorithm={__name__}:{name}", "num-clients=2", "global-rounds=1", f"output-dir={tmp_path / 'run'}"]
    with caplog.at_level(logging.WARNING):
        assert main(settings) == 2
    left_out = [record.getMessage() for record in caplog.records if "of cloud left out" in record.getMessage()]
    assert len(left_out) == 2
    assert all(line.endswith(reason) for line in left_out)


MISTYPED = replace(FEDAVG, client=ClientHalf(stays=lambda model: ["haed.weight"]))


def test_weights_that_stay_and_are_not_in_the_model_are_named(tmp_path, capsys):
    name = f"{__name__}:MISTYPED"
    assert main([f"algorithm={name}", "num-clients=2", "global-rounds=1", f"output-dir={tmp_path / 'run'}"]) == 2
    said = f"algorithm = {name!r}: allowed is one whose ClientHalf.stays names weights of the model, not 'haed.weight'"
    assert capsys.readouterr().err.endswith(f"error: {said}\n")


def body_stays(model):
    return [name for name in model.state_dict() if not name.startswith("head")]


BODY_STAYS = ClientHalf(stays=body_stays)
STAYS = replace(FEDAVG, strategy_key="edge-strategy", client=BODY_STAYS, make_edge=edge_of_halves(BODY_STAYS))
STAYS_NOT_AT_EDGES = replace(STAYS, make_edge=edge_strategy)
STAYS_IN_PART = replace(STAYS, make_edge=lambda site: AlgorithmEdge(edge_strategy(site), None, ["1.weight"]))
TELLS_NOBODY = replace(FEDAVG, make_edge=edge_strategy, client=ClientHalf(tells_weights=True))


@pytest.mark.parametrize("name", ["STAYS_NOT_AT_EDGES", "STAYS_IN_PART", "TELLS_NOBODY"])
def test_an_edge_without_what_clients_keep_or_tell_is_refused_with_what_to_type(name, tmp_path, capsys):
    assert main([f"algorithm={__name__}:{name}", "num-clients=2", f"output-dir={tmp_path / 'run'}"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: algorithm = '{__name__}:{name}': allowed is one whose edges ")
    assert "make_edge=edge_of_halves(CLIENT), of espalier.app.algorithms.strategies" in line
    assert not (tmp_path / "run").exists()


def test_weights_stay_with_the_edges_that_are_named(tmp_path):
    folder = run_app(tmp_path / "run", algorithm=f"{__name__}:STAYS", **SHORT | {"global_rounds": 1})
    assert summary(folder)["replies_left_out"] == 0


def tells_a_number(begun):
    return Done((yield Pass()).weights, told={"n": torch.tensor(1.0)})


TELLS_A_STRATEGY = replace(FEDAVG, make_edge=edge_strategy, client=ClientHalf(rule=tells_a_number))


def test_what_is_told_to_a_strategy_alone_is_said_to_be_for_an_algorithm_edge(tmp_path, caplog):
    name, given = f"{__name__}:TELLS_A_STRATEGY", ["num-clients=2", "global-rounds=1", "batches-per-epoch=1"]
    with caplog.at_level(logging.WARNING):
        assert main([f"algorithm={name}", *given, f"output-dir={tmp_path / 'run'}"]) == 2
    left_out = [line for line in caplog.messages if "of cloud left out" in line]
    assert len(left_out) == 2
    assert all("2 array records, expected 1 ('client-half' is for an AlgorithmEdge)" in line for line in left_out)


class SendsText(EdgeHalf):
    def sent(self, node_id):
        return "mu"


class MakesNothing(EdgeHalf):
    def averaged(self, gathered):
        gathered.models.clear()


class MakesFlat(EdgeHalf):
    def averaged(self, gathered):
        return {n: {name: w.flatten() for name, w in own.items()} for n, own in gathered.models.items()}


class MakesAStranger(EdgeHalf):
    def averaged(self, gathered):
        return {**gathered.models, 12345: gathered.start}


class LeavesOut(EdgeHalf):
    """Leaves a client out by taking its model away."""

    def averaged(self, gathered):
        gathered.models.pop(max(gathered.models))
        return gathered.models


def plain(begun):
    return Done((yield Pass()).weights)


LEAVES_OUT = own(plain, LeavesOut)


def test_whom_a_half_takes_away_is_left_out_by_name(tmp_path):
    folder = run_app(tmp_path / "run", algorithm=f"{__name__}:LEAVES_OUT", **SHORT)
    assert summary(folder)["replies_left_out"] == 3


TEXT, NONE, FLAT, STRANGER = (own(plain, half) for half in (SendsText, MakesNothing, MakesFlat, MakesAStranger))


RETURNS = "has to return weights of the model's names and shapes"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("TEXT", "BadReturnError: SendsText.sent() returned no tensors and numbers by name"),
        ("NONE", f"BadReturnError: MakesNothing.averaged() {RETURNS}"),
        ("FLAT", f"BadReturnError: MakesFlat.averaged() {RETURNS}"),
        ("STRANGER", f"BadReturnError: MakesAStranger.averaged() {RETURNS}"),
        ("NO_YIELD_CUT", f"BadRuleError: the algorithm's rule {HAS_NO_YIELD}"),
        ("CLASS_PASS_CUT", "BadRuleError: the algorithm's rule yielded the class Pass: allowed is Pass()"),
        ("NO_PASS_CUT", "BadRuleError: the algorithm's rule returned before any pass: allowed is Done, after a pass"),
        ("LONGER_CUT", "BadRuleError: the algorithm's clients train parts of a model or of a round, which a cut model"),
    ],
)
def test_a_half_or_a_rule_that_can_not_go_on_ends_the_run_in_a_line(name, said, tmp_path, capsys):
    given = ["num-clients=2", "global-rounds=1", "batches-per-epoch=1", f"output-dir={tmp_path / 'run'}"]
    assert main([f"algorithm={__name__}:{name}", *given]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: algorithm = '{__name__}:{name}': allowed is one that does not fail ({said}")


class LearnsTooLittle(EdgeHalf):
    def learn(self, model, told):
        pass


class IsNoHalf:
    def sent(self, node_id):
        return {}


def split_edge(site, rule=plain, half=LearnsTooLittle):
    return server_block_per_client(site, of=partial(SplitAlgorithm, rule=rule, half=half()))


TOO_LITTLE, NO_HALF, CLASS = own(plain, LearnsTooLittle), own(plain, IsNoHalf), own(plain, lambda: EdgeHalf)
IN_SPLIT = replace(TOO_LITTLE, splits=True, make_edge=split_edge)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("TOO_LITTLE", "LearnsTooLittle.learn() has to take (model, told, num_clients)"),
        ("IN_SPLIT", "LearnsTooLittle.learn() has to take (model, told, num_clients)"),
        ("NO_HALF", "the half of an edge is an object of a subclass of EdgeHalf, not IsNoHalf"),
        ("CLASS", "the half of an edge is an object of a subclass of EdgeHalf, not EdgeHalf itself"),
    ],
)
def test_a_half_that_can_not_be_asked_is_refused_before_training(name, said, tmp_path, capsys):
    assert main([f"algorithm={__name__}:{name}", "num-clients=2", f"output-dir={tmp_path / 'run'}"]) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    allowed = f"allowed is one whose make_edge(site) does not fail (TypeError: {said}"
    assert line.startswith(f"error: algorithm = '{__name__}:{name}': {allowed}")
    assert not (tmp_path / "run").exists()


def counts_rounds(begun):
    learned = yield Pass()
    rounds = int(begun.kept.get("rounds", 0)) + 1
    return Done(learned.weights, told={"rounds": torch.tensor(rounds), "twice": 2 * rounds}, kept={"rounds": rounds})


class Hears(EdgeHalf):
    """Keeps the numbers that it was told."""

    heard: ClassVar[list] = []

    def learn(self, model, told, num_clients):
        Hears.heard += [{name: float(number) for name, number in own.items()} for own in told.values()]


COUNTS = own(counts_rounds, Hears)


def test_whole_numbers_and_those_of_python_reach_the_edge(tmp_path, monkeypatch):
    monkeypatch.setattr(Hears, "heard", [])
    folder = run_app(tmp_path / "run", algorithm=f"{__name__}:COUNTS", num_clients=2, global_rounds=2)
    assert Hears.heard == [{"rounds": n, "twice": 2 * n} for n in (1, 1, 2, 2)]
    assert summary(folder)["replies_left_out"] == 0


def tells_its_size(begun):
    learned = yield Pass()
    size = sum(weights.numel() for weights in begun.trained.values())
    return Done(learned.weights, told={"size": size, f"size from {min(begun.trained)}": size})


def tells_its_size_apart(begun):
    done = yield from tells_its_size(begun)
    return Done(done.weights, {name: size for name, size in done.told.items() if name != "size"})


SPLIT = replace(FEDAVG, strategy_key="edge-strategy", splits=True)
TELL_TWICE, TELL_APART = (
    replace(SPLIT, client=ClientHalf(rule=rule), make_edge=partial(split_edge, rule=rule, half=Hears))
    for rule in (tells_its_size, tells_its_size_apart)
)


def test_a_number_that_both_sides_of_a_cut_tell_leaves_the_client_out(tmp_path, caplog):
    given = ["num-clients=2", "global-rounds=1", "batches-per-epoch=1", f"output-dir={tmp_path / 'run'}"]
    with caplog.at_level(logging.WARNING):
        assert main([f"algorithm={__name__}:TELL_TWICE", *given]) == 2
    left_out = [line for line in caplog.messages if "of cloud left out" in line]
    said = "its blocks and the server's both tell 'size', expected one of the two"
    assert [line.endswith(said) for line in left_out] == [True, True]


def test_numbers_of_both_sides_of_a_cut_reach_the_edge_under_names_of_their_own(tmp_path, monkeypatch):
    monkeypatch.setattr(Hears, "heard", [])
    folder = run_app(tmp_path / "run", algorithm=f"{__name__}:TELL_APART", num_clients=2, global_rounds=1)
    assert summary(folder)["replies_left_out"] == 0
    assert Hears.heard == 2 * [{"size from conv1.0.bias": 160, "size from conv2.0.bias": 13546}]


def trains_longer(begun):
    return Done((yield Pass(epochs=2)).weights)


NO_YIELD_CUT, CLASS_PASS_CUT, NO_PASS_CUT, LONGER_CUT = (
    replace(SPLIT, client=ClientHalf(rule=rule), make_edge=partial(split_edge, rule=rule, half=EdgeHalf))
    for rule in (has_no_yield, yields_the_class, makes_no_pass, trains_longer)
)
