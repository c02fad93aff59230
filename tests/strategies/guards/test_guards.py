"""One reply can do no more to a model than the guard allows, and honest ones are never touched."""

import logging

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord
from flwr.serverapp.strategy import FedAdam, FedAvg, FedMedian, FedTrimmedAvg, FedYogi, Krum, MultiKrum

from espalier.sim.in_process_grid import InProcessGrid
from espalier.strategies import AccumulatedGradients, Guard, Hierarchical, StrategyEdge, UpdateGuard, ask_profiles
from espalier.strategies.split import Relay, SplitFedV1, SplitFedV2
from espalier.strategies.topology import group_by_edge
from tests.strategies.guards.tight import tight
from tests.strategies.split.federation import Federation as Unguarded
from tests.strategies.split.federation import assert_close, same, weights
from tests.strategies.test_hostile import dying, profiled, reasons, telling
from tests.strategies.test_hostile import toy_run as unguarded_run
from tests.strategies.toys import initial, to_numpy, to_record, toy_app


class Federation(Unguarded):
    """A federation with the guard of the app's defaults."""

    def run(self, *what, **options):
        return super().run(*what, **{"guard": tight(), **options})


def toy_run(*what, **options):
    return unguarded_run(*what, **{"guard": tight(), **options})


ANY = {"min_train_nodes": 1, "min_evaluate_nodes": 1, "min_available_nodes": 1}


def arrays_as(change, first=1, last=10**9):
    """Return a lie: in some rounds what is sent is what `change` makes of the weights that came and those trained."""

    def lie(message, reply):
        server_round = message.content["config"]["server-round"]
        if first <= server_round <= last:
            sent = to_numpy(next(iter(message.content.array_records.values())))
            (name,) = reply.content.array_records
            trained = to_numpy(reply.content[name])
            told = {key: change(sent[key], trained[key]) for key in trained}
            reply.content[name] = ArrayRecord({key: Array(np.asarray(w)) for key, w in told.items()})

    return lie


def constant(value):
    return lambda sent, trained: np.full_like(trained, value)


def scaled(factor):
    return lambda sent, trained: (sent + factor * (trained - sent)).astype(trained.dtype)


KINDS = {
    "FedAvg": lambda: FedAvg(**ANY),
    "FedAdam": lambda: FedAdam(eta=0.1, **ANY),
    "FedYogi": lambda: FedYogi(eta=0.1, **ANY),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("first", [1, 2])
@pytest.mark.parametrize("value", [1e30, 1e12, 1e4])
def test_weights_that_are_finite_and_huge_once_leave_one_client_out_once(kind, first, value):
    lie = arrays_as(constant(value), first, first)
    found = toy_run(telling(toy_app(), lie), make_edge=KINDS[kind], rounds=4)
    counts = [0] * 4
    counts[first - 1] = 1
    assert [len(reasons(outcome)) for outcome in found] == counts
    assert "guard.update-norm" in reasons(found[first - 1])[0]

    def dead(message, reply):
        if message.content["config"]["server-round"] == first:
            dying(message, reply)

    expected = toy_run(telling(toy_app(), dead), make_edge=KINDS[kind], rounds=4)
    assert same(weights(found[-1]), weights(expected[-1]))


def test_a_dead_model_is_left_out_though_it_takes_no_long_step_to_be_one():
    federation = Federation(sizes=(20, 33, 14, 40), learning_rate=0.2)
    for lie in (arrays_as(constant(0.0)), dying):
        found = federation.run(rounds=2, grid=federation.grid(telling(federation.app(), lie)))
        assert [len(reasons(outcome)) for outcome in found] == [1, 1]
        if lie is not dying:
            assert "long towards zero" in reasons(found[0])[0]
            dead = weights(found[-1])
    assert same(dead, weights(found[-1]))


@pytest.mark.parametrize("first", [1, 2])
def test_of_two_clients_a_huge_one_is_left_out_too(first):
    lie = arrays_as(constant(1e30), first, first)
    found = toy_run(telling(toy_app(), lie), num_clients=2, rounds=3)
    assert [len(reasons(outcome)) for outcome in found] == [int(t == first) for t in (1, 2, 3)]


def test_what_grows_fast_in_the_first_round_is_no_lie_where_all_do():
    """As the statistics of a BatchNorm in front of raw data do."""
    sent = {"w": np.ones(4, np.float32)}

    def judged(*lengths):
        return set(UpdateGuard(tight()).judge({n: (sent, {"w": sent["w"] * x}) for n, x in enumerate(lengths)}))

    assert judged(1e5, 2e5) == judged(5.0, 9.0) == set()
    assert judged(5.0, 1e5) == {1}


def update_of(length):
    """A model of length 2, and one that is so far from it."""
    sent = np.ones(4)
    return {"w": sent}, {"w": sent + length / 2}


def guard_of(num_nodes, mode="leave-out"):
    guard = UpdateGuard(tight(mode))
    guard.count_nodes(num_nodes)
    return guard


def refusals(guard, *replies):
    """Who is refused, of replies that are judged one by one, each (node id, length)."""
    return [bool(guard.judge({node_id: update_of(length)})) for node_id, length in replies]


def test_a_reply_that_is_judged_alone_is_bounded_from_the_first_on():
    assert refusals(guard_of(1), (1, 1e6), (1, 205.0), (1, 195.0)) == [True, True, False]  # 20, 200, then 2,000
    assert refusals(guard_of(4), *[(1, 1e6)] * 50, (2, 0.1)) == [True] * 50 + [False]
    assert refusals(guard_of(3), (1, 21.0), (2, 21.0), (3, 21.0), (1, 21.0)) == [True, True, False, False]


@pytest.mark.parametrize("tries", [1, 2, 50])
def test_who_is_refused_alone_gains_nothing_by_trying_again(tries):
    """As a fast node of FedAsync does."""
    guard = guard_of(3)
    assert refusals(guard, (1, 0.1), (2, 0.1), *[(9, 1.5)] * tries) == [False, False, *[True] * tries]
    # Even if it is accepted between, by being like others.
    assert refusals(guard, (1, 0.1), (9, 0.9), *[(9, 100.0)] * tries, (2, 0.1)) == [
        False,
        False,
        *[True] * tries,
        False,
    ]


def test_a_node_has_one_vote_on_what_is_usual_however_often_it_replies():
    guard = guard_of(5)
    assert refusals(guard, *[(n, 1.0) for n in range(4)]) == [False] * 4
    longest, length = 0.0, 9.9
    for _ in range(20):
        if not refusals(guard, (9, length))[0]:
            longest, length = length, 9.9 * length
    assert longest == 9.9
    # Nor does it keep the others out, by updates that are short.
    assert not any(refusals(guard, *[(9, 1e-3)] * 20, *[(n, 1.0) for n in range(4)]))


@pytest.mark.parametrize("num_nodes", [3, 4, 5])
def test_a_node_with_short_updates_keeps_the_others_out_no_longer_than_most_have_tried(num_nodes):
    guard = guard_of(num_nodes)
    turns = [(node_id, 0.1 if node_id == 0 else 1.5) for _ in range(20) for node_id in range(num_nodes)]
    assert sum(refusals(guard, *turns)) <= num_nodes


def test_what_was_usual_is_so_no_longer_where_most_do_not_keep_to_it():
    alone = guard_of(1)
    assert refusals(alone, (1, 0.1), (1, 9.0), (1, 9.0), (1, 95.0), (1, 95.0)) == [False, True, False, True, False]
    eight = guard_of(8)
    assert refusals(eight, *[(n, 0.1) for n in range(8)], *[(n, 9.0) for n in (0, 1, 1, 2, 3, 4)]) == [
        *[False] * 8,
        *[True] * 6,
    ]
    assert refusals(eight, (5, 9.0), (6, 0.1), (5, 9.0)) == [False, False, False]
    back = guard_of(8)
    back.load_state_dict(eight.state_dict())
    assert back.state_dict() == eight.state_dict()


def test_what_is_usual_follows_from_who_replied_not_from_who_came_first():
    guards = [guard_of(20).activations for _ in range(2)]
    order = list(range(20))
    for guard, nodes in zip(guards, (order, order[::-1]), strict=True):
        for node_id in nodes:
            guard.took(node_id, 1, 1.0 + node_id)
        assert guard.judge() == {}
    assert guards[0].state_dict() == guards[1].state_dict()


def test_a_node_is_not_held_against_those_who_are_gone():
    guard = guard_of(2)
    for _ in range(3):
        assert guard.judge({1: update_of(1.0), 2: update_of(1.0)}) == {}
    guard.count_nodes(1)
    assert refusals(guard, (2, 11.0), (2, 11.0)) == [True, False]


def test_an_update_of_infinite_length_is_left_out_whatever_it_is_held_against():
    huge = np.full(4, 3e38, np.float32)
    infinite = {"w": np.zeros(4, np.float32)}, {"w": huge}
    assert set(guard_of(1).judge({1: infinite})) == {1}
    assert set(guard_of(2).judge({1: infinite, 2: update_of(0.1)})) == {1}


def test_only_warning_learns_what_is_usual_too(caplog):
    guard = guard_of(2, mode="warn")
    assert refusals(guard, (1, 0.1), (2, 0.1), (2, 5.0)) == [False] * 3
    assert "2: its update is 5 long, where 1 is allowed" in caplog.text


def test_an_edges_model_is_held_against_the_other_edges_at_the_cloud(caplog):
    class Wild(StrategyEdge):
        def train_round(self, server_round, arrays, config, grid):
            update = yield from super().train_round(server_round, arrays, config, grid)
            huge = ArrayRecord({name: Array(a.numpy() * np.float32(1e20)) for name, a in update.arrays.items()})
            return type(update)(huge, update.metrics, update.weight, update.participants)

    def run(**options):
        grid = InProcessGrid(toy_app(), 6)
        kinds = {"edge-0": StrategyEdge, "edge-1": Wild, "edge-2": StrategyEdge}
        strategy = Hierarchical(
            FedAvg(**ANY),
            lambda name, size: kinds[name](FedAvg(**ANY)),
            group_by_edge(ask_profiles(grid), 3),
            evaluate_every=0,
            **{"guard": tight(), **options},
        )
        return next(strategy.rounds(grid, to_record(initial()), 2))

    found = run()
    assert "edge-1 left out: its update is" in caplog.text
    assert np.abs(found.arrays["w"].numpy()).max() < 10
    assert np.abs(run(guard=Guard(mode="off")).arrays["w"].numpy()).max() > 1e10


def test_accumulated_gradients_are_held_against_each_other():
    federation = Federation(sizes=(20, 33, 14, 40))

    def make(name, size):
        return AccumulatedGradients(0.05, StrategyEdge(FedAvg(**ANY)))

    def huge(message, reply):
        arrays_as(constant(1e25))(message, reply)

    found, expected = (
        federation.run(make, rounds=3, grid=federation.grid(telling(federation.app(), lie, ["train.accumulated"])))
        for lie in (huge, dying)
    )
    assert [len(reasons(outcome)) for outcome in found] == [1, 1, 1]
    assert same(weights(found[-1]), weights(expected[-1]))


SPLIT = {"sfl-v1": (SplitFedV1, lambda n: 2), "sfl-v2": (SplitFedV2, 2), "sl": (Relay, 2)}


@pytest.mark.parametrize("algorithm", SPLIT)
def test_a_client_block_that_is_huge_is_left_out_of_split_training(algorithm):
    federation = Federation(sizes=(20, 33, 14, 40))

    def lie(message, reply):
        block = reply.content["client-block"]
        huge = {name: w + 1e30 if w.dtype.kind == "f" else w for name, w in to_numpy(block).items()}
        reply.content["client-block"] = to_record(huge)

    app = telling(federation.app(), lie, ["train.split_end"])
    found = federation.run(federation.split(*SPLIT[algorithm]), rounds=2, grid=federation.grid(app))
    assert ["guard.update-norm" in reason for outcome in found for reason in reasons(outcome)] == [True, True]
    assert all(tensor.abs().max() < 100 for tensor in weights(found[-1]).values() if tensor.is_floating_point())


MODES = {"leave-out": 0.0, "clip": 10.0, "warn": 100.0, "off": 100.0}


@pytest.mark.parametrize("mode", MODES)
def test_a_mode_says_what_becomes_of_a_long_update(mode, caplog):
    sent = {"w": np.zeros(4, np.float32), "n": np.array(3)}
    models = {i: (sent, {"w": np.eye(4, dtype=np.float32)[i % 4], "n": np.array(4)}) for i in range(5)}
    models[9] = (sent, {"w": np.array([0, 100, 0, 0], np.float32), "n": np.array(7)})
    guard = UpdateGuard(tight(mode), lambda node_id: f"client {node_id}")
    verdicts = guard.judge(models)
    assert set(verdicts) == ({9} if mode in ("leave-out", "clip") else set())
    assert ("client 9: its update is 100 long, where 10 is allowed" in caplog.text) == (mode == "warn")
    if mode == "clip":
        np.testing.assert_array_equal(verdicts[9].instead["w"], np.array([0, 10, 0, 0], np.float32))
        assert verdicts[9].instead["n"] == 7
    if mode == "leave-out":
        assert verdicts[9].instead is None


def test_clipped_updates_reach_the_model():
    app = telling(toy_app(), arrays_as(scaled(1e6)))
    left_out, clipped = (toy_run(app, rounds=1, guard=tight(mode))[0] for mode in ("leave-out", "clip"))
    assert (len(reasons(left_out)), reasons(clipped)) == (1, [])
    moved = [np.linalg.norm(outcome.arrays["w"].numpy() - initial()["w"]) for outcome in (left_out, clipped)]
    assert moved[0] < moved[1] < 10 * moved[0]


@pytest.mark.parametrize("kind", ["FedAdam", "FedYogi"])
def test_a_strategy_whose_own_state_is_spoilt_says_so(kind):
    lie = arrays_as(constant(1e30), 1, 1)
    found = toy_run(telling(toy_app(), lie), make_edge=KINDS[kind], rounds=3, guard=Guard(mode="off"))
    assert [len(reasons(outcome)) for outcome in found] == [1, 1, 1]
    assert all(f"{kind}.v_t holds NaN or Inf: its model no longer moves" in reasons(o)[0] for o in found[1:])


def strategies_of(app, states=None, rounds=2):
    grid = InProcessGrid(app, 6)
    topology = group_by_edge(ask_profiles(grid), 3)
    strategy = Hierarchical(FedAvg(**ANY), lambda name, size: FedAvg(**ANY), topology, evaluate_every=0, guard=tight())
    if states:
        strategy.load_state_dict(states)
    return strategy, grid


def test_what_was_usual_survives_an_interruption():
    straight, grid = strategies_of(toy_app())
    expected = list(straight.rounds(grid, to_record(initial()), 4))
    first, grid = strategies_of(toy_app())
    half = list(first.rounds(grid, to_record(initial()), 2))
    second, grid = strategies_of(toy_app(), first.state_dict())
    found = list(second.rounds(grid, half[-1].arrays, 4, first_round=3))
    assert second.state_dict() == straight.state_dict()
    assert same(weights(found[-1]), weights(expected[-1]))
    kept = straight.state_dict()["edges"]["edge-0"]["espalier.guard"]["updates"]["kept"]
    assert [len(lengths) for _, lengths in kept] == [4, 4]
    # A state of an earlier edition knows of no guard.
    old = {"cloud": {}, "edges": {name: {} for name in straight.edges}}
    third, _ = strategies_of(toy_app(), old)
    assert third.state_dict()["cloud"]["espalier.guard"]["updates"]["kept"] == []
    # One of a later edition had a length for each round.
    guard = guard_of(1)
    guard.load_state_dict({"updates": [0.1, 0.1], "activations": {"1": [2.0]}})
    assert refusals(guard, (1, 0.9), (1, 5.1)) == [False, True]
    assert guard.activations.knows(1)


# Strategies of all kinds over the whole models of split training.

STRATEGIES = {
    "FedMedian": lambda: FedMedian(**ANY),
    "FedTrimmedAvg": lambda: FedTrimmedAvg(beta=0.25, **ANY),
    "Krum": lambda: Krum(num_malicious_nodes=1, **ANY),
    "MultiKrum": lambda: MultiKrum(num_malicious_nodes=1, num_nodes_to_select=2, **ANY),
    "FedAdam": lambda: FedAdam(eta=0.05, **ANY),
}


@pytest.mark.parametrize("kind", STRATEGIES)
def test_split_training_under_a_strategy_is_unsplit_training_under_it(kind):
    federation = Federation(sizes=(20, 33, 14, 40))
    make_split = federation.split(SplitFedV1, lambda n: 2)

    def make(name, size):
        edge = make_split(name, size)
        edge.aggregation = StrategyEdge(STRATEGIES[kind]())
        return edge

    split, whole = federation.run(make, rounds=3), federation.run(lambda n, s: STRATEGIES[kind](), rounds=3)
    assert_close(weights(split[-1]), weights(whole[-1]), 1e-7)
    assert split[-1].train_metrics["train_loss"] == pytest.approx(whole[-1].train_metrics["train_loss"])


def test_a_robust_strategy_keeps_a_lie_out_of_client_and_server_blocks():
    federation = Federation(sizes=(20, 33, 14, 40))
    make_split = federation.split(SplitFedV1, lambda n: 2)

    def lie(message, reply):
        block = to_numpy(reply.content["client-block"])
        reply.content["client-block"] = to_record(
            {name: w + 50.0 if w.dtype.kind == "f" else w for name, w in block.items()}
        )

    def make(name, size):
        edge = make_split(name, size)
        edge.aggregation = StrategyEdge(Krum(num_malicious_nodes=1, **ANY))
        return edge

    app = telling(federation.app(), lie, ["train.split_end"])
    (found,) = federation.run(make, rounds=1, grid=federation.grid(app), guard=Guard(mode="off"))
    assert all(tensor.abs().max() < 20 for tensor in weights(found).values() if tensor.is_floating_point())


def test_those_whom_a_strategy_samples_are_those_who_took_part_in_split_training():
    federation = Federation(sizes=(20, 33, 14, 40))
    make_split = federation.split(SplitFedV1, lambda n: 2)

    def make(name, size):
        edge = make_split(name, size)
        edge.aggregation = StrategyEdge(FedAvg(fraction_train=0.5, **ANY))
        return edge

    grid = federation.grid()
    profiles = ask_profiles(grid)
    (found,) = federation.run(make, rounds=1, grid=grid)
    (update,) = found.edges["edge-0"].updates
    sample = {p.partition_id: p.num_train_examples for p in profiles if p.node_id in update.participants}
    assert len(update.participants) == len(sample) == 2
    assert update.weight == sum(sample.values())
    app = federation.app()

    def without_others(message, context):
        if context.node_config["partition-id"] not in sample and message.metadata.message_type.startswith("train"):
            raise RuntimeError("not of the sample")
        return app(message, context)

    (expected,) = federation.run(make_split, rounds=1, grid=federation.grid(without_others))
    assert_close(weights(found), weights(expected), 1e-7)


def test_a_strategy_that_makes_no_model_leaves_split_training_as_it_was():
    federation = Federation(sizes=(20, 33, 14))
    make_split = federation.split(SplitFedV1, lambda n: 2)

    class Silent(FedAvg):
        def aggregate_train(self, server_round, replies):
            return None, None

    def make(name, size):
        edge = make_split(name, size)
        edge.aggregation = StrategyEdge(Silent(**ANY))
        return edge

    (found,) = federation.run(make, rounds=1)
    assert reasons(found) == ["Silent made no model of 3 replies"]
    assert same(weights(found), federation.make_model().state_dict())


def test_the_guard_is_silent_by_honest_clients(caplog):
    caplog.set_level(logging.WARNING, "espalier")
    app = profiled(toy_app())
    with_guard, without = (toy_run(app, rounds=3, guard=tight(mode)) for mode in ("leave-out", "off"))
    assert same(weights(with_guard[-1]), weights(without[-1]))
    assert caplog.text == ""


# Activations.

SPLIT_KINDS = {
    "sfl-v1": (SplitFedV1, lambda n: 2, {}),
    "sfl-v2": (SplitFedV2, 2, {}),
    "sfl-v2, one by one": (SplitFedV2, 2, {"order": "one-by-one"}),
    "sl": (Relay, 2, {}),
}


def constant_activations(value, server_round):
    def lie(message, reply):
        config = next(iter(message.content.config_records.values()))
        if config["server-round"] == server_round and "activations" in reply.content:
            values = reply.content["activations"]["activations"].numpy()
            reply.content["activations"] = ArrayRecord({"activations": Array(np.full_like(values, value))})

    return lie


@pytest.mark.parametrize("algorithm", SPLIT_KINDS)
@pytest.mark.parametrize("server_round", [1, 2])
@pytest.mark.parametrize(("liar", "value"), [(0, 1e18), (1, 1e3), (2, 1e3)])
def test_activations_far_from_the_others_leave_one_client_out_once(algorithm, server_round, value, liar):
    kind, cut, options = SPLIT_KINDS[algorithm]
    federation = Federation(sizes=(10, 17, 8, 20))
    kinds = ["train.split_begin", "train.split_step"]
    lie = constant_activations(value, server_round)

    def dead(message, reply):
        if next(iter(message.content.config_records.values()))["server-round"] == server_round:
            dying(message, reply)

    found, expected = (
        federation.run(
            federation.split(kind, cut, **options),
            rounds=server_round + 1,
            grid=federation.grid(telling(federation.app(), one, kinds, liar)),
        )
        for one in (lie, dead)
    )
    assert [len(reasons(outcome)) for outcome in found] == [*[0] * (server_round - 1), 1, 0]
    if kind is not SplitFedV2:  # there an order is drawn among those who begin a round
        assert same(weights(found[-1]), weights(expected[-1]))
    losses = [outcomes[-1].train_metrics["train_loss"] for outcomes in (found, expected)]
    assert losses[0] == pytest.approx(losses[1], rel=0.02)


def test_after_a_first_round_nobody_is_at_fault_for_having_begun_it_first():
    """Who went beyond because another one had spoilt the server block is told of too: the round is made again."""
    guard = UpdateGuard(tight()).activations
    for node_id in (1, 2, 3):
        guard.admitted(node_id, 1, 1.0)
        guard.took(node_id, 1, 1.0)
    guard.took(3, 1, 1e3)
    guard.took(1, 1, 9e2)
    assert set(guard.judge(by_first=True)) == {1, 3}
    guard.begin_round()
    with pytest.raises(ValueError, match="where 5 is allowed"):
        guard.admitted(3, 1, 1e3)


def test_who_spoils_a_model_that_goes_from_client_to_client_is_found_by_what_comes_after():
    def found(*firsts, unfit=()):
        guard = UpdateGuard(tight()).activations
        for node_id, length in enumerate(firsts):
            guard.admitted(node_id, 1, length)
        return guard.before_jump(range(len(firsts) + len(unfit)), unfit)

    assert found(1e3, 0.0, 0.0, 0.0) == found(1.0, 1e4, 1e4, 1e4) == found(1.0, unfit=(1, 2, 3)) == 0
    assert found(1.0, 1e3, 0.0, 0.0, 0.0) == 1
    assert found(1.0, 1.3, 0.7, 2.0) is found(1.0, 1.0, 0.0, 1.0) is found(1e3, 0.0) is found(0.0, 0.0, 0.0) is None


@pytest.mark.parametrize("size", [20.0, 1e30])
def test_the_block_of_sls_first_client_is_held_against_the_others(size):
    federation = Federation(sizes=(20, 33, 14, 40, 25))

    def lie(message, reply):
        if "client-block" in reply.content:
            block = to_numpy(reply.content["client-block"])
            told = {name: w + size if w.dtype.kind == "f" else w for name, w in block.items()}
            reply.content["client-block"] = to_record(told)

    found, expected = (
        federation.run(
            federation.split(Relay, 2),
            rounds=2,
            grid=federation.grid(telling(federation.app(), one, ["train.split_end"], 0)),
        )
        for one in (lie, dying)
    )
    assert ["guard.update-norm" in reason for outcome in found for reason in reasons(outcome)] == [True, True]
    assert same(weights(found[-1]), weights(expected[-1]))


def test_two_liars_of_a_first_round_are_left_out_and_nobody_else():
    """One spoils the block that goes on from client to client, the other the server's block."""

    def long_block(message, reply):
        if "client-block" in reply.content:
            block = to_numpy(reply.content["client-block"])
            told = {name: w + 1.9 if w.dtype.kind == "f" else w for name, w in block.items()}
            reply.content["client-block"] = to_record(told)

    def trained(first, second):
        federation = Federation(sizes=(20, 33, 14, 40, 25, 18))
        app = telling(federation.app(), first, ["train.split_end"], 0)
        app = telling(app, second, ["train.split_begin", "train.split_step"], 4)
        return federation.run(federation.split(Relay, 2), rounds=1, grid=federation.grid(app))[-1]

    found, expected = trained(long_block, constant_activations(1e3, 1)), trained(dying, dying)
    assert ["guard.update-norm" in reasons(found)[0], "guard.activation-norm" in reasons(found)[1]] == [True, True]
    assert len(reasons(found)) == 2
    assert same(weights(found), weights(expected))


@pytest.mark.parametrize("algorithm", SPLIT_KINDS)
@pytest.mark.parametrize("server_round", [1, 2])
def test_long_activations_are_clipped_in_the_first_round_too(algorithm, server_round):
    kind, cut, options = SPLIT_KINDS[algorithm]
    federation = Federation(sizes=(20, 33, 14, 40))
    lie = constant_activations(1e3, server_round)
    grid = federation.grid(telling(federation.app(), lie, ["train.split_begin", "train.split_step"]))
    found = federation.run(federation.split(kind, cut, **options), rounds=3, grid=grid, guard=tight("clip"))
    assert [reasons(outcome) for outcome in found] == [[], [], []]
    assert found[-1].train_metrics["train_loss"] < 1.2


@pytest.mark.parametrize("algorithm", SPLIT_KINDS)
def test_honest_activations_are_never_touched(algorithm, caplog):
    kind, cut, options = SPLIT_KINDS[algorithm]
    federation = Federation(sizes=(20, 33, 14, 40))
    guarded, free = (
        federation.run(federation.split(kind, cut, **options), rounds=3, guard=tight(mode))
        for mode in ("leave-out", "off")
    )
    assert same(weights(guarded[-1]), weights(free[-1]))
    assert [reasons(outcome) for outcome in guarded] == [[], [], []]


def test_activations_of_different_cuts_are_not_compared():
    guard = UpdateGuard(tight()).activations
    for node_id, (cut, length) in enumerate(
        [(1, 100.0), (1, 90.0), (1, 110.0), (2, 1.0), (2, 0.9), (2, 1.1), (2, 9.0)]
    ):
        assert guard.admitted(node_id, cut, length) == 1.0
        guard.took(node_id, cut, length)
    assert list(guard.judge()) == [6]
    guard.begin_round()
    with pytest.raises(ValueError, match=r"activations are 9 long, where 5 is allowed"):
        guard.admitted(6, 2, 9.0)
    again = UpdateGuard(tight()).activations
    again.load_state_dict(guard.state_dict())
    assert again.state_dict() == guard.state_dict()
    first = {cut: own["kept"] for cut, own in guard.state_dict().items()}
    assert first == {
        "1": [("0", [100.0]), ("1", [90.0]), ("2", [110.0])],
        "2": [("3", [1.0]), ("4", [0.9]), ("5", [1.1])],
    }


def test_where_nobody_is_left_longer_activations_are_usual():
    guard = UpdateGuard(tight()).activations
    guard.took(1, 1, 1.0)
    assert guard.judge() == {}
    for most in (5.0, 50.0, 500.0):
        guard.begin_round()
        with pytest.raises(ValueError, match=r"guard\.activation-norm"):
            guard.admitted(1, 1, 1.1 * most)
        assert guard.judge() == {}
    guard.begin_round()
    assert guard.admitted(1, 1, 550.0) == 1.0


def test_who_sends_long_activations_alone_gains_nothing_by_trying_again():
    guard = guard_of(2).activations
    for node_id in (1, 2):
        guard.took(node_id, 1, 1.0)
    assert guard.judge() == {}
    for _ in range(3):
        guard.begin_round()
        with pytest.raises(ValueError, match=r"are 6 long, where 5 is allowed"):
            guard.admitted(2, 1, 6.0)
        assert guard.judge() == {}


def test_activations_are_clipped_to_the_bound():
    guard = UpdateGuard(tight("clip")).activations
    most = guard.most(1, [1.0, 1.0, 10.0])
    assert [guard.admitted(n, 1, length, most) for n, length in ((1, 1.0), (2, 10.0))] == [1.0, 0.5]
    with pytest.raises(ValueError, match="activations are inf long"):
        guard.admitted(3, 1, float("inf"), guard.most(1, [1.0, 1.0, float("inf")]))
