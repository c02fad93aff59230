"""An edge that learns the sum: as a plain one to the stated error, whoever drops out, and nothing else."""

import copy
from collections import defaultdict
from dataclasses import replace

import numpy as np
import pytest
import torch
from flwr.app import Array, RecordDict
from flwr.clientapp.mod import message_size_mod
from flwr.serverapp.strategy import FedAdam, FedAvg

from espalier.clients.client_app import make_client_app
from espalier.clients.messages.secure import (
    MASKED,
    SECURE,
    SECURE_KEYS,
    SECURE_SHARES,
    SECURE_UNMASK,
    MaskedReply,
    SecureShares,
    SecureUnmask,
)
from espalier.clients.messages.split_names import SPLIT_END
from espalier.clients.messages.train import TRAIN
from espalier.clients.shared.arrays import to_record, to_weights
from espalier.clients.shared.secure.terms import SecureTerms
from espalier.sim.in_process_grid import InProcessGrid
from espalier.strategies.corners import EdgeOverCorners
from espalier.strategies.randomness import derived_seed
from espalier.strategies.secure import CLIPPED, ERROR, SUMMED, SecureAggregation
from espalier.strategies.secure.graph import graph_of, is_connected
from espalier.strategies.split import SplitFedV1
from tests.strategies.secure.secure_clients import SIZES, TERMS, failing_grid, secure, secure_federation
from tests.strategies.split.federation import ANY, Federation, every, weights

EXCHANGES = (SECURE_KEYS, SECURE_SHARES, TRAIN, SECURE_UNMASK)


def plain(gone=(), sizes=SIZES, **options):
    """Return the rounds of plain averages without those who are gone."""
    federation = Federation(sizes=sizes)
    return federation.run(grid=failing_grid(federation, dict.fromkeys(gone, (TRAIN,))), **options)


def test_flowers_mod_that_counts_bytes_can_be_around_a_client():
    federation = secure_federation()
    grid = InProcessGrid(make_client_app(federation.load, mods=[message_size_mod]), len(SIZES))
    (outcome,) = federation.run(secure(), rounds=1, grid=grid)
    assert len(of_last(outcome).participants) == len(SIZES)


def distance(one, other):
    one, other = weights(one), weights(other)
    return max(float((one[name].double() - other[name].double()).abs().max()) for name in one)


def of_last(outcome):
    return outcome.edges["edge-0"].updates[-1]


def test_averages_are_the_plain_ones_to_the_stated_error():
    """The model has BatchNorm, with statistics and an integer counter; two edge rounds, two global ones."""
    expected, found = plain(edge_rounds=2), secure_federation().run(secure(), edge_rounds=2)
    error = max(update.metrics[ERROR] for outcome in found for update in outcome.edges["edge-0"].updates)
    assert error < 1e-7
    assert distance(expected[0], found[0]) < 10 * error  # later rounds start from models that are off
    assert distance(expected[1], found[1]) < 1e-5
    own, of_plain = of_last(found[0]), of_last(expected[0])
    assert (own.metrics[SUMMED], own.metrics[CLIPPED]) == (5, 0)
    assert own.weight == of_plain.weight == sum(SIZES)
    assert own.metrics["train_loss"] == pytest.approx(of_plain.metrics["train_loss"], abs=1e-5)
    assert (own.participants, own.losses) == (of_plain.participants, {})


@pytest.mark.parametrize("exchange", EXCHANGES)
@pytest.mark.parametrize("gone", [{1}, {0, 4}], ids=["one", "two"])
def test_who_drops_out_is_left_out_and_the_rest_is_the_plain_average(exchange, gone):
    federation = secure_federation()
    grid = failing_grid(federation, dict.fromkeys(gone, (exchange,)))
    (found,) = federation.run(secure(), rounds=1, grid=grid)
    left_out = set() if exchange == SECURE_UNMASK else gone  # who has sent its numbers is in the sum
    (expected,) = plain(left_out, rounds=1)
    assert distance(expected, found) < 1e-7
    assert of_last(found).metrics[SUMMED] == 5 - len(left_out)
    assert [f.reason for f in of_last(found).failures] == ["ValueError: its battery is empty"] * len(left_out)


@pytest.mark.parametrize("neighbours", [0, 6])
def test_clients_drop_out_at_every_exchange_of_one_round(neighbours):
    sizes, terms = (20, 33, 14, 40, 27, 31, 18, 22, 25), SecureTerms(neighbours=neighbours, threshold=0.5)
    federation, gone = secure_federation(terms, sizes=sizes), {i: (kind,) for i, kind in enumerate(EXCHANGES)}
    (found,) = federation.run(secure(terms=terms), rounds=1, grid=failing_grid(federation, gone))
    (expected,) = plain({0, 1, 2}, sizes=sizes, rounds=1)
    assert distance(expected, found) < 1e-7
    assert of_last(found).metrics[SUMMED] == 6


@pytest.mark.parametrize("exchange", EXCHANGES)
def test_with_too_few_left_the_round_is_void_and_the_next_one_is_not(exchange):
    """Of five, three are needed: of the sum, and to take its masks off."""
    federation, calls = secure_federation(), defaultdict(int)
    gone = {client: [exchange] for client in (0, 2, 3)}
    asked = list[str]()

    def seen(client, message, reply):
        asked.append(message.metadata.message_type)
        calls[message.metadata.message_type] += 1

    grid = failing_grid(federation, gone, seen=seen)
    strategy_rounds = federation.run(secure(), rounds=1, grid=grid, edge_rounds=1)
    update = of_last(strategy_rounds[0])
    assert update.arrays is None
    assert not update.participants
    void = [failure for failure in update.failures if failure.node_id == 0]
    assert len(void) == 1
    assert "void" in void[0].reason
    assert "needed" in void[0].reason
    assert len(update.failures) == (1 if exchange == SECURE_UNMASK else 4)
    # Nobody is asked for anything after the exchange at which too few were left.
    assert set(asked) & set(EXCHANGES) <= set(EXCHANGES[: EXCHANGES.index(exchange) + 1])
    gone.clear()
    (again,) = federation.run(secure(), rounds=1, grid=grid)
    assert of_last(again).metrics[SUMMED] == 5


def test_an_edge_with_fewer_clients_than_a_sum_needs_asks_nobody():
    federation = secure_federation(sizes=(20, 33))
    asked = []
    grid = failing_grid(federation, {}, seen=lambda client, message, reply: asked.append(message))
    (found,) = federation.run(secure(), rounds=1, grid=grid)
    assert "2 of 2 clients are left, 3 needed" in of_last(found).failures[0].reason
    assert not [m for m in asked if m.metadata.message_type.startswith("train")]


def test_what_an_edge_gets_of_one_client_is_uniform_and_no_two_rounds_share_a_key():
    from scipy import stats

    federation, replies = secure_federation(), defaultdict(list)
    grid = failing_grid(federation, {}, seen=lambda c, m, reply: replies[m.metadata.message_type].append(reply))
    federation.run(secure(), rounds=6, grid=grid)
    contents = [reply.content for reply in replies[TRAIN]]
    assert len(contents) == 30
    assert all(set(content) - {"espalier.seconds"} == {MASKED, SECURE} for content in contents)
    masked = [MaskedReply.from_content(content).masked for content in contents]
    values = np.concatenate([own.values for own in masked])
    for shift in (0, 12, 24):  # of low, middle and high bits
        assert stats.chisquare(np.bincount((values >> shift) & 0xFF, minlength=256)).pvalue > 1e-4
    exact = np.concatenate([own.exact.view(np.uint8) for own in masked])
    assert stats.chisquare(np.bincount(exact, minlength=256)).pvalue > 1e-4
    # Not the update either: of the same client's numbers in two rounds no more are alike than of others'.
    assert abs(stats.pearsonr(masked[0].values.astype(float), masked[5].values.astype(float)).statistic) < 0.1
    keys = [bytes(reply.content[SECURE][key]) for reply in replies[SECURE_KEYS] for key in reply.content[SECURE]]
    assert len(set(keys)) == len(keys) == 3 * 30


def test_masks_follow_no_seed_and_the_average_does_not_depend_on_them():
    federation, numbers = secure_federation(), []

    def seen(client, message, reply):
        if message.metadata.message_type == TRAIN:
            numbers.append(MaskedReply.from_content(reply.content).masked.values)

    (first,), (second,) = (
        federation.run(secure(), rounds=1, grid=failing_grid(federation, {}, seen=seen)) for _ in range(2)
    )
    assert not np.array_equal(numbers[0], numbers[5])
    assert distance(first, second) == 0


def test_a_process_for_every_message_gives_the_same_bits():
    federation = secure_federation()
    (alive,) = federation.run(secure(), rounds=1)
    grid = federation.grid(lambda message, context: federation.app(durable=True)(message, context))
    (anew,) = federation.run(secure(), rounds=1, grid=grid)
    assert distance(alive, anew) == 0


def test_an_adaptive_strategy_gets_the_average():
    def adaptive(name, size):
        return FedAdam(eta=0.1, tau=0.1, **ANY)  # with a small tau signs decide, of numbers near zero too

    expected = Federation(sizes=SIZES).run(adaptive, rounds=2)
    found = secure_federation().run(secure(adaptive), rounds=2)
    assert distance(expected[-1], found[-1]) < 1e-5


def test_equal_weights_and_a_bound_that_clients_keep():
    federation = secure_federation(equal_weights=True, update_norm=0.05)
    start = federation.make_model().state_dict()
    (found,) = federation.run(secure(most_weight=1), rounds=1)
    assert of_last(found).weight == 5
    moved = {n: w - start[n] for n, w in weights(found).items() if w.is_floating_point()}
    assert 0.001 < float(torch.cat([own.flatten() for own in moved.values()]).norm()) <= 0.05 + 1e-6


@pytest.mark.parametrize(
    ("lie", "reason"),
    [
        (lambda content: content[MASKED].pop("exact"), "KeyError"),
        (lambda content: content.pop(MASKED), "has no record 'masked'"),
        (lambda content: content.pop(SECURE), "no config record 'secure'"),
    ],
)
def test_who_sends_no_masked_numbers_has_dropped_out(lie, reason):
    federation = secure_federation()

    def seen(client, message, reply):
        if client == 2 and message.metadata.message_type == TRAIN:
            lie(reply.content)

    (found,) = federation.run(secure(), rounds=1, grid=failing_grid(federation, {}, seen=seen))
    (expected,) = plain({2}, rounds=1)
    assert distance(expected, found) < 1e-7
    assert len(of_last(found).failures) == 1


def test_a_client_that_lies_about_shares_voids_no_round_and_one_about_numbers_does():
    federation = secure_federation()

    def lying(at):
        def seen(client, message, reply):
            if client == 2 and message.metadata.message_type == at:
                config = reply.content[SECURE]
                if at == SECURE_UNMASK:
                    config["shares"] = [bytes(16)] * len(config["shares"])
                else:
                    noise = np.random.default_rng(0).integers(0, 2**63, reply.content[MASKED]["exact"].shape[0])
                    reply.content[MASKED]["exact"] = Array(noise.astype(np.uint64))

        return failing_grid(federation, {}, seen=seen)

    (found,) = federation.run(secure(), rounds=1, grid=lying(SECURE_UNMASK))
    (expected,) = plain(rounds=1)
    assert distance(expected, found) < 1e-7
    (void,) = federation.run(secure(), rounds=1, grid=lying(TRAIN))
    assert "one has sent something else" in of_last(void).failures[-1].reason


def test_who_sends_blocks_without_figures_is_left_out_of_split_training():
    federation = secure_federation()

    def seen(client, message, reply):
        if client == 2 and message.metadata.message_type == SPLIT_END:
            del reply.content["metrics"]

    grid, edge = failing_grid(federation, {}, seen=seen), federation.split(SplitFedV1, every(2))
    (found,) = federation.run(secure(edge), rounds=1, grid=grid)
    assert (len(of_last(found).participants), len(of_last(found).failures)) == (4, 1)
    assert of_last(found).metrics[SUMMED] == 5


def test_a_client_sends_nothing_to_an_edge_without_secure_aggregation():
    federation = secure_federation()
    (found,) = federation.run(rounds=1)
    reasons = {failure.reason for failure in of_last(found).failures}
    assert reasons == {"ValueError: its edge asks for an update without secure aggregation"}


def of_no_weight(content):
    content[SECURE]["most-weight"] = 10**12


def of_another_model(content):
    content["arrays"] = to_record({n: 0 * weight for n, weight in to_weights(content["arrays"]).items()})


def of_another_pull(content):
    content["config"]["proximal-mu"] = 1e6


@pytest.mark.parametrize("name", ["arrays", "client-block"])  # the other is of split training, where pulls may differ
@pytest.mark.parametrize("lie", [of_no_weight, of_another_model, of_another_pull])
def test_an_edge_that_makes_all_updates_but_one_small_gets_no_sum(lie, name):
    """To all but client 0 it tells what makes their numbers zero, or those of its own choice: 0's would be left."""
    federation, replies = secure_federation(), []

    def change(client, message):
        if message.metadata.message_type == TRAIN:
            message.content = RecordDict({n: copy.copy(record) for n, record in message.content.items()})
            if client:
                lie(message.content)
            message.content[name] = message.content.pop("arrays")

    grid = failing_grid(federation, {}, change=change, seen=lambda client, message, reply: replies.append(reply))
    (found,) = federation.run(secure(), rounds=1, grid=grid)
    assert not any(reply.has_error() for reply in replies)
    assert "one has sent something else" in of_last(found).failures[-1].reason


class ActiveEdge:
    """Has run a round up to the masked numbers, and then asks clients, by their places, for what it likes."""

    def __init__(self):
        self.federation, self.node_at = secure_federation(), {}

        def seen(client, message, reply):
            if message.metadata.message_type == SECURE_SHARES:
                self.node_at[SecureShares.from_content(message.content).place] = message.metadata.dst_node_id

        last_refused = failing_grid(self.federation, dict.fromkeys(range(5), (SECURE_UNMASK,)), seen=seen)
        self.federation.run(secure(), rounds=1, grid=last_refused)
        self.grid = failing_grid(self.federation, {})
        self.grid.load_state_dict(last_refused.state_dict())

    def ask(self, place, instruction):
        (reply,) = self.grid.send_and_receive([instruction.to_message(self.node_at[place])])
        return reply

    def unmask(self, place, survived, dropped, server_round=1):
        return self.ask(place, SecureUnmask(server_round, tuple(survived), tuple(dropped), {}))


def test_an_edge_that_asks_one_client_for_both_secrets_of_another_gets_neither():
    edge = ActiveEdge()
    assert "both secrets" in edge.unmask(0, range(5), [1]).error.reason  # at once
    assert not edge.unmask(0, range(5), []).has_error()
    assert edge.unmask(0, [0, 2, 3, 4], [1]).has_error()  # one after the other


def test_an_edge_that_asks_different_clients_has_too_few_shares_of_one_secret():
    edge, needed = ActiveEdge(), TERMS.needed(5)
    asked_for_key = [edge.unmask(client, [0, 2, 3, 4], [1]) for client in (2, 3, 4)]
    asked_for_self_mask = [edge.unmask(client, range(5), []) for client in (0, 1)]
    assert not any(reply.has_error() for reply in asked_for_key + asked_for_self_mask)
    assert len(asked_for_key) >= needed > len(asked_for_self_mask)
    assert all(edge.unmask(client, range(5), []).has_error() for client in (2, 3, 4))  # no client brings both


def test_an_edge_can_not_have_few_clients_unmask_or_the_same_masks_for_another_model():
    edge = ActiveEdge()
    assert "2 clients that share masks are left, 3 needed" in edge.unmask(0, [0, 1], [2, 3, 4]).error.reason
    assert "no share of" in edge.unmask(0, range(6), []).error.reason
    assert "not at 'masked' of 2" in edge.unmask(0, range(5), [], server_round=2).error.reason
    assert "not at 'keys' of 1" in edge.ask(0, SecureShares(1, 0, {})).error.reason


def test_models_of_different_forms_are_refused():
    over = EdgeOverCorners(FedAvg(**ANY), lambda node_id: {}, {})
    with pytest.raises(ValueError, match="clients lack parts of weights"):
        SecureAggregation(over, TERMS, 1)


@pytest.mark.parametrize("neighbours", [2, 4, 10])
def test_all_have_equally_many_neighbours_and_hang_together(neighbours):
    graph = graph_of(range(20), neighbours, seed=3)
    assert {len(near) for near in graph.values()} == {neighbours}
    assert all(place in graph[n] for place, near in graph.items() for n in near)
    assert is_connected(graph, range(20))
    assert graph != graph_of(range(20), neighbours, seed=4)
    assert not is_connected(graph, set(range(20)) - graph[0])


def test_those_who_do_not_hang_together_are_not_unmasked():
    """In a circle of eight, two who are opposite drop out."""
    terms, sizes = SecureTerms(neighbours=2, threshold=0.5, fewest=2), (20, 21, 22, 23, 24, 25, 26, 27)
    federation = secure_federation(terms, sizes=sizes)
    graph = graph_of(range(8), 2, derived_seed(0, "neighbours", 1))
    other = next(n for n in range(1, 8) if not is_connected(graph, set(range(8)) - {0, n}) and not graph[n] & graph[0])
    grid = failing_grid(federation, {0: (TRAIN,), other: (TRAIN,)})
    (found,) = federation.run(secure(terms=terms, most_weight=40), rounds=1, grid=grid)
    assert "share no masks with each other" in of_last(found).failures[-1].reason


@pytest.mark.parametrize("wrong", [{"clip": 0.0}, {"threshold": 0.0}, {"fewest": 1}, {"neighbours": 3}], ids=str)
def test_terms_that_make_no_sense_are_refused(wrong):
    with pytest.raises(ValueError, match="must be"):
        replace(TERMS, **wrong)
