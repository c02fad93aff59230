"""Clients that have corners of weights under edges that have all of them."""

import pytest
import torch
from flwr.app import ConfigRecord, Message
from flwr.serverapp.strategy import FedAvg

from espalier.clients.shared.arrays import to_record, to_weights
from espalier.clients.shared.corners import corner_of, filled_up
from espalier.sim.in_process_grid import InProcessGrid
from espalier.strategies.corners import EdgeOverCorners
from espalier.strategies.edge_laws import plain_client
from espalier.strategies.exchange import converse
from espalier.strategies.privacy import PrivateMean
from espalier.strategies.views import MemberGrid

MODEL = {"down": torch.arange(1.0, 13).view(4, 3), "up": torch.arange(1.0, 9).view(2, 4), "bias": torch.ones(3)}
WHOLE = {name: tuple(weight.shape) for name, weight in MODEL.items()}
RANKS = [1, 4, 2]


def corners(client):
    rank = RANKS[client]
    return {} if rank == 4 else {"down": (rank, 3), "up": (2, rank)}


def trained(corner, client):
    """Return what a client of `plain_client` makes of a weight in round 1: half of the way to a point of its own."""
    return corner + 0.5 * (torch.sin(torch.tensor(3.0 * client + 1)) - corner)


def test_a_corner_filled_up_is_0_elsewhere_and_its_own_copy():
    weight = MODEL["down"].clone()
    whole = filled_up(corner_of(weight, (2, 2)), (4, 3))
    assert whole.tolist() == [[1, 2, 0], [4, 5, 0], [0, 0, 0], [0, 0, 0]]
    corner_of(weight, (4, 3)).zero_()
    assert torch.equal(weight, MODEL["down"])


def test_products_of_lower_ranks_are_averaged_as_if_filled_up_with_zeros():
    seen = {}

    def client(message: Message, context):
        number = int(context.node_config["partition-id"])
        (record,) = message.content.array_records.values()
        seen[number] = {name: tuple(array.shape) for name, array in record.items()}
        return plain_client(message, context)

    nodes = [7, 5, 6]
    grid = InProcessGrid(client, 3, node_ids=nodes)
    edge = EdgeOverCorners(FedAvg(fraction_evaluate=0.0), lambda n: corners(nodes.index(n)), WHOLE)
    round_of = edge.train_round(1, to_record(MODEL), ConfigRecord(), MemberGrid(grid, nodes))
    update = converse(grid, {"": round_of})[""]
    assert not update.failures
    assert seen == {number: WHOLE | corners(number) for number in range(3)}

    counts = [10, 17, 24]
    averaged = to_weights(update.arrays)
    for name, weight in MODEL.items():
        parts = [
            count * filled_up(trained(corner_of(weight, corners(i).get(name, WHOLE[name])), i), WHOLE[name])
            for i, count in enumerate(counts)
        ]
        torch.testing.assert_close(averaged[name], sum(parts) / sum(counts))
    assert averaged["down"][3].abs().min() > 0  # from client 1 alone


def test_who_sends_another_part_than_its_own_is_left_out():
    def client(message: Message, context):
        reply = plain_client(message, context)
        if int(context.node_config["partition-id"]) == 0:
            (record,) = reply.content.array_records.values()
            record["down"] = to_record({"down": torch.ones(2, 3)})["down"]
        return reply

    nodes = [7, 5, 6]
    grid = InProcessGrid(client, 3, node_ids=nodes)
    edge = EdgeOverCorners(FedAvg(fraction_evaluate=0.0), lambda n: corners(nodes.index(n)), WHOLE)
    update = converse(grid, {"": edge.train_round(1, to_record(MODEL), ConfigRecord(), MemberGrid(grid, nodes))})[""]
    assert [failure.node_id for failure in update.failures] == [7]


def test_updates_of_whole_models_can_not_be_clipped_where_clients_lack_parts():
    edge = EdgeOverCorners(FedAvg(), lambda n: {}, WHOLE)
    with pytest.raises(ValueError, match="clients lack parts of weights"):
        PrivateMean(edge, 1.0, 1.0, lambda number: None)
