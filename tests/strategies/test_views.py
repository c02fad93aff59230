"""Views of a Grid, and what they tell of a round."""

from espalier.sim.in_process_grid import InProcessGrid
from espalier.strategies import MemberGrid, RoundTerms


def test_views_of_views_keep_the_terms_until_others_are_told():
    grid = InProcessGrid(lambda message, context: message, 2)
    nodes = list(grid.get_node_ids())
    told = RoundTerms(num_clients=5, wanted=1, local_rounds={nodes[0]: 3})
    outer = MemberGrid(grid, nodes, terms=told)
    assert MemberGrid(grid, nodes).terms == RoundTerms()
    assert MemberGrid(outer, nodes[:1]).as_of_now().terms == told
    assert MemberGrid(outer, nodes, terms=RoundTerms()).terms == RoundTerms()
    assert (MemberGrid(grid, nodes).num_clients, outer.num_clients) == (2, 5)
