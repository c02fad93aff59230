"""What clients keep and what their edges keep of it fit each other: whoever is there, fails, or begins anew."""

import logging

import pytest
import torch
from flwr.app import ArrayRecord

from espalier.app.algorithms.mtgc import EdgeCorrection, mtgc_round
from espalier.app.engines.flower import Flower
from espalier.app.ground.checkpoint import from_bytes, to_bytes
from espalier.app.reports.run_state import RunState
from espalier.app.run.resume import take_back
from espalier.app.tiers.states import OwnState
from espalier.app.wiring.task_of_run import build_task
from espalier.clients.memory import RUN
from espalier.clients.messages.split_names import AUXILIARY_HEAD
from espalier.clients.shared.local_round import Begun, Done, Learned
from tests.app.algorithms.test_scaffold import edge_half_of, kept_by
from tests.app.assembling import config_of, engine_of, federation_of
from tests.app.runs import lines, run_app

SMALL = {"num_clients": 4, "local_epochs": 1, "batches_per_epoch": 2, "alpha": 0.3, "engine": "in-process"}
TRACE = "client,from,to\n0,1,3\n1,3,5\n2,5,7\n3,1,3\n"
SOME_ARE_THERE = {
    "all": {},
    "half are asked": {"participation": 0.5},
    "some are there": {"availability_mode": "trace"},
    "two are selected": {"selection": "resource-aware", "selected_per_edge": 2, "deadline_seconds": 100.0},
}


def begun(**settings):
    config = config_of(**{**SMALL, **settings})
    engine = engine_of(config)
    return engine, federation_of(config, engine.grid), ArrayRecord(build_task(config).new_model().state_dict())


def sum_of(edge):
    """Return what an edge keeps of its clients' own: SCAFFOLD's c, or FedDyn's h."""
    half = edge_half_of(edge.inner)
    return half.control if hasattr(half, "control") else half.h


@pytest.mark.parametrize("algorithm", ["scaffold", "feddyn"])
@pytest.mark.parametrize("settings", SOME_ARE_THERE.values(), ids=SOME_ARE_THERE)
def test_an_edge_keeps_the_mean_over_all_of_its_clients_whoever_is_there(settings, algorithm, tmp_path):
    (tmp_path / "trace.csv").write_text(TRACE)
    if settings.get("availability_mode"):
        settings = {**settings, "availability_trace": str(tmp_path / "trace.csv")}
    engine, federation, model = begun(algorithm=algorithm, **settings)
    federation.hierarchical.start(engine.grid, model, num_rounds=6)
    ((name, edge),) = federation.hierarchical.edges.items()
    own = [kept_by(engine.grid, node_id) for node_id in federation.hierarchical.topology[name]]
    assert max(float(values.abs().max()) for values in sum_of(edge).values()) > 1e-3
    for key, values in sum_of(edge).items():
        torch.testing.assert_close(sum(kept[key] for kept in own if kept) / 4, values, rtol=0, atol=1e-6)


def test_a_global_round_of_mtgc_begins_with_whatever_edge_round_is_the_first_with_somebody():
    edge, told = EdgeCorrection(edge_rounds=2), {n: {"mtgc-path": torch.tensor(0.5)} for n in (7, 8)}

    def model(value):
        return {"w": torch.full((1,), value)}

    for number, start in ((1, 0.0), (2, 1.0)):
        edge.begin(number, model(start))
        edge.learn(model(start + 1.0), told, 2)
    edge.begin(4, model(1.5))  # nobody was there in round 3
    assert edge.sent(7)["w"].tolist() == [0.5]  # (2 - 1.5) / (0.5 + 0.5)
    edge.learn(model(2.0), told, 2)
    assert edge.path == 0.5
    edge.begin(7, model(9.0))  # nor in the whole global round before, whose first model it did not see
    assert edge.sent(7)["w"].tolist() == [0.5]


def test_who_trained_for_a_model_that_was_not_made_goes_on_from_the_edges():
    edge = EdgeCorrection(edge_rounds=4)
    start, told = {"w": torch.zeros(1)}, {7: {"mtgc-path": torch.tensor(0.5)}}
    edge.begin(1, start)
    edge.learn(start, told, 2)
    edge.begin(2, start)
    assert edge.sent(7) == {}
    edge.begin(3, start)  # in round 2 nobody's reply came
    assert edge.sent(7)["w"].tolist() == [0]


def test_a_client_of_mtgc_that_begins_anew_is_sent_the_edges_correction_in_the_next_round():
    x = {"w": torch.ones(2)}
    conversation = mtgc_round(Begun(x, x))
    assert next(conversation).correction.drift["w"].tolist() == [0, 0]
    with pytest.raises(StopIteration) as over:
        conversation.send(Learned(x, path=0.5, steps=1))
    assert over.value.value.told == {}
    edge = EdgeCorrection(edge_rounds=2)
    edge.begin(1, x)
    edge.learn(x, {7: over.value.value.told, 8: {"mtgc-path": torch.tensor(0.25)}}, 2)
    assert (edge.path, edge.informed) == (0.25, [8])


class Anew:
    """An engine as Flower's: what its clients kept is lost in another run."""

    load_clients_state = Flower.load_clients_state


@pytest.mark.parametrize("algorithm", ["scaffold", "feddyn", "mtgc", "hsfl-scaffold", "hsfl-feddyn"])
def test_where_clients_begin_anew_so_does_what_goes_by_them(algorithm):
    settings = {"algorithm": algorithm, **({"fine_tune.steps": 0} if "hsfl" in algorithm else {})}
    engine, federation, model = begun(**settings)
    *_, last = federation.hierarchical.rounds(engine.grid, model, 2)
    states = from_bytes(to_bytes(federation.hierarchical.state_dict()))
    engine, federation, _ = begun(**settings)
    state = RunState(
        round=2, data="", edges={}, wall_seconds=1.0, arrays=last.arrays, strategies=states, clients={}, world={}
    )
    take_back(state, federation.hierarchical, Anew(), None)
    rounds = list(federation.hierarchical.rounds(engine.grid, last.arrays, 4, first_round=3))
    assert [len(u.participants) for r in rounds for e in r.edges.values() for u in e.updates] == [4, 4]
    (edge,) = federation.hierarchical.edges.values()
    if algorithm in ("scaffold", "feddyn"):
        own = [kept_by(engine.grid, node_id) for node_id in engine.grid.get_node_ids()]
        for key, values in sum_of(edge).items():
            torch.testing.assert_close(sum(kept[key] for kept in own) / 4, values, rtol=0, atol=1e-6)


def test_heads_that_an_edge_has_fitted_go_down_again_where_clients_begin_anew():
    settings = {"algorithm": "fsl-sage", "fsl_sage.fit_every": 10, "fsl_sage.fit_steps": 2, "split.upload_every": 1}
    engine, federation, model = begun(**settings)
    *_, last = federation.hierarchical.rounds(engine.grid, model, 2)
    (edge,) = federation.hierarchical.edges.values()
    nodes = engine.grid.get_node_ids()
    assert [set(edge.inner.beside(node_id)) for node_id in nodes] == [set()] * 4
    edge.inner.clients_begin_anew()
    heads = [edge.inner.beside(node_id) for node_id in nodes]
    assert all(heads)
    engine, _, _ = begun(**settings)  # nodes of the same ids, which know nothing
    list(federation.hierarchical.rounds(engine.grid, last.arrays, 4, first_round=3))  # first they register labels
    for node_id, head in zip(nodes, heads, strict=True):
        assert same_weights_of(kept_by(engine.grid, node_id, AUXILIARY_HEAD), head)


def test_heads_that_an_edge_has_fitted_go_down_to_the_same_clients_by_other_node_ids():
    settings = {"algorithm": "fsl-sage", "fsl_sage.fit_every": 10, "fsl_sage.fit_steps": 2, "split.upload_every": 1}
    engine, federation, model = begun(**settings)
    *_, last = federation.hierarchical.rounds(engine.grid, model, 2)
    (edge,) = federation.hierarchical.edges.values()
    edge.inner.clients_begin_anew()
    before = list(engine.grid.numbers)
    heads = [edge.inner.beside(node_id) for node_id in before]
    states = from_bytes(to_bytes(federation.hierarchical.state_dict()))
    engine, resumed, _ = begun(**settings, seed=1)
    assert not set(engine.grid.numbers) & set(before)
    resumed.hierarchical.load_state_dict(states)
    for _ in range(2):
        resumed.hierarchical.clients_begin_anew()
    (edge,) = resumed.hierarchical.edges.values()
    assert all(same_weights_of(edge.inner.beside(n), head) for n, head in zip(engine.grid.numbers, heads, strict=True))
    list(resumed.hierarchical.rounds(engine.grid, last.arrays, 4, first_round=3))
    assert all(kept_by(engine.grid, node_id, AUXILIARY_HEAD) for node_id in engine.grid.numbers)
    assert len(edge.inner.state_dict()["kept"]) == 4


def test_a_client_that_comes_back_gets_the_head_that_its_edge_has_fitted(tmp_path):
    (tmp_path / "moves.csv").write_text("client,from,edge\n0,3,edge-1\n0,6,edge-0\n")
    settings = {"algorithm": "fsl-sage", "fsl_sage.fit_every": 2, "fsl_sage.fit_steps": 2, "fsl_sage.fit_rate": 0.05}
    settings |= {"num_edges": 2, "edge_rounds": 1, "availability_moves": str(tmp_path / "moves.csv")}
    engine, federation, model = begun(**settings)
    node_id, heads = next(iter(engine.grid.numbers)), []
    home, other = (edge.inner for edge in federation.hierarchical.edges.values())

    def kept_head():
        return kept_by(engine.grid, node_id, AUXILIARY_HEAD)

    for outcome in federation.hierarchical.rounds(engine.grid, model, 6):
        last = outcome
        heads.append(kept_head())
        if outcome.number == 5:
            state = from_bytes(to_bytes(federation.hierarchical.state_dict()))
    assert same_weights_of(heads[2], home._heads[node_id])  # until the other edge has fitted one
    assert not same_weights_of(heads[4], home._heads[node_id])
    assert same_weights_of(heads[5], home._heads[node_id])
    assert other._heads.keys() > {node_id}
    resumed = begun(**settings)[1].hierarchical
    resumed.load_state_dict(state)
    next(resumed.rounds(engine.grid, last.arrays, 6, first_round=6))
    due = [edge.inner._due for edge in resumed.edges.values()]
    assert due == [home._due, other._due]


def test_heads_stay_with_their_clients_where_some_have_changed_places_and_clients_begin_anew(tmp_path):
    (tmp_path / "moves.csv").write_text("client,from,edge\n0,3,edge-1\n2,3,edge-0\n")
    settings = {"algorithm": "fsl-sage", "fsl_sage.fit_every": 2, "fsl_sage.fit_steps": 2, "num_edges": 2}
    settings |= {"edge_rounds": 1, "availability_moves": str(tmp_path / "moves.csv")}
    engine, federation, model = begun(**settings)
    for _ in federation.hierarchical.rounds(engine.grid, model, 4):
        pass
    before = {name: edge.inner._heads for name, edge in federation.hierarchical.edges.items()}
    resumed = begun(**settings)[1].hierarchical
    resumed.load_state_dict(from_bytes(to_bytes(federation.hierarchical.state_dict())))
    resumed.clients_begin_anew()
    for name, edge in resumed.edges.items():
        assert edge.inner._heads
        for node_id, head in edge.inner._heads.items():
            assert same_weights_of(head, before[name][node_id])


def same_weights_of(left, right):
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


def test_a_host_whose_run_is_new_has_clients_that_begin_anew():
    engine, federation, model = begun(algorithm="scaffold")
    (edge,) = federation.hierarchical.edges.values()
    old = OwnState(edge, None)
    old.from_request(old.to_answer())
    federation.hierarchical.start(engine.grid, model, num_rounds=1)
    assert sum_of(edge)
    old.from_request(saved := old.to_answer())
    assert sum_of(edge)
    new = OwnState(edge, None)
    new.to_answer()  # as it introduces itself
    new.from_request(saved)
    assert not sum_of(edge)


def test_a_host_whose_answer_to_training_was_lost_has_clients_that_begin_anew():
    engine, federation, model = begun(algorithm="scaffold")
    (edge,) = federation.hierarchical.edges.values()
    own = OwnState(edge, None)

    def trained(state):
        own.from_request(state)
        own.before_training()
        began_anew = not sum_of(edge)
        federation.hierarchical.start(engine.grid, model, num_rounds=1)
        return own.to_answer(), began_anew, own.told

    first, *_ = trained(own.to_answer())
    own.from_request(first)
    second, began_anew, told = trained(own.to_answer())  # an evaluation's answer: it has moved nobody on
    assert (began_anew, told) == (False, {})
    third, began_anew, told = trained(first)  # the second is lost
    assert (began_anew, third["run"] != first["run"]) == (True, True)
    assert told == {RUN: third["run"]}
    fourth, began_anew, told = trained(third)
    assert (began_anew, told) == (False, {RUN: third["run"]})
    assert len({state["mark"] for state in (first, second, third, fourth)}) == 4


@pytest.mark.parametrize("algorithm", ["h-fedavg", "scaffold", "feddyn", "ditto", "apfl", "fedper", "hsfl-scaffold"])
def test_a_round_that_diverges_costs_a_client_this_round_alone(algorithm, tmp_path, caplog):
    """Its steps are far too long in the first round, and as usual from then on."""
    settings = {"task": "tests.app.own_tasks:Leaping", "num_clients": 2, "num_edges": 1, "edge_rounds": 1}
    if "hsfl" in algorithm:
        settings |= {"fine_tune_steps": 0}
    with caplog.at_level(logging.ERROR):
        folder = run_app(tmp_path / "run", algorithm=algorithm, **settings, global_rounds=4, report_evaluate_every=0)
    took_part = [len(each) for line in lines(folder, "edge") for each in line["participants"]]
    assert took_part == [0, 2, 2, 2]


def test_a_number_that_is_kept_may_be_infinite_and_a_weight_not():
    w = {"w": torch.ones(2)}
    assert Done(w, kept={"best": torch.tensor(float("inf")), **w}).is_of_use
    assert not Done(w, kept={"w": torch.tensor([1.0, float("inf")])}).is_of_use
    assert not Done({"w": torch.tensor([float("nan")])}, kept=w).is_of_use
    assert not Done(w, told={"n": torch.tensor(float("nan"))}, kept=w).is_of_use
