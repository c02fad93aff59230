import pytest

from espalier.strategies import Profile, group_by_edge
from espalier.strategies.profiles import LazyProfiles, clients_by_node, profiles_by_node
from espalier.strategies.topology import in_blocks

NODES = [31, 7, 99, 12, 5]


def _lazy():
    made = []

    def tell(node_id, client):
        made.append(client)
        return Profile(node_id, client, "", 10 + client, 3, (client, 1))

    return LazyProfiles({node_id: i for i, node_id in enumerate(NODES)}, tell), made


def test_lazy_profiles_are_those_of_a_list():
    lazy, _ = _lazy()
    listed = [Profile(node_id, i, "", 10 + i, 3, (i, 1)) for i, node_id in enumerate(NODES)]
    assert (list(lazy), len(lazy), lazy[1:3], lazy[-1]) == (listed, 5, listed[1:3], listed[-1])
    assert list(clients_by_node(lazy).items()) == list(clients_by_node(listed).items())
    assert list(profiles_by_node(lazy).items()) == list(profiles_by_node(listed).items())
    assert 8 not in profiles_by_node(lazy)
    with pytest.raises(IndexError):
        lazy[5]


def test_a_profile_is_made_when_it_is_looked_at_and_once():
    lazy, made = _lazy()
    by_node = profiles_by_node(lazy)
    assert (clients_by_node(lazy)[99], 99 in by_node, made) == (2, True, [])
    assert by_node[99] is by_node[99] is lazy[2]
    assert made == [2]


@pytest.mark.parametrize("num_edges", range(1, 6))
def test_blocks_are_the_groups_of_nodes_that_name_no_edge(num_edges):
    assert in_blocks(NODES, num_edges) == group_by_edge(list(_lazy()[0]), num_edges)


def test_there_are_no_blocks_without_nodes():
    with pytest.raises(ValueError, match="6 edges for 5 nodes: an edge needs at least one node"):
        in_blocks(NODES, 6)
