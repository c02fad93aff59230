"""What is said and drawn of seconds."""

from itertools import pairwise

import pytest

from espalier.app.features.seconds.plots import draw_seconds
from espalier.app.features.seconds.reports import columns, slowest_summary, words


def own(training=0.5, waiting=1.0, transfer=0.25, edge_rounds=2, **more):
    return more | {
        "edge_rounds": edge_rounds,
        "training_seconds": training,
        "waiting_seconds": waiting,
        "transfer_seconds": transfer,
    }


def line(number, clients, edges):
    return {"round": number, "scope": "seconds", "clients": clients, "edges": edges}


LINES = [
    {"round": 1, "scope": "global"},
    line(
        1,
        {"3": own(edge="east"), "10": own(transfer=9.0, edge_rounds=1, edge="west")},
        {"east": own(), "west": own(9.0)},
    ),
    line(2, {"3": own(4.0, edge="east"), "10": own(1.0, 0.0, 0.0, edge="east")}, {"east": own(4.0)}),
]


def test_the_slowest_are_those_of_most_training_and_transfer_in_an_edge_round():
    slowest = slowest_summary(LINES)["seconds"]["slowest"]
    assert slowest["client"] == {"client": 10, "edge": "east", **own(0.5, 1 / 3, 3.0, 3)} | {
        "waiting_seconds": 0.333333
    }
    assert slowest["edge"] == {"edge": "west", **own(4.5, 0.5, 0.125)}
    assert slowest_summary(LINES[:1]) == {}
    assert "edge" not in slowest_summary([line(1, {"3": own(edge="cloud")}, {"cloud": own()})])["seconds"]["slowest"]
    assert slowest_summary([line(1, {}, {"cloud": own()})]) == {}
    assert slowest_summary([line(1, {}, dict.fromkeys(("east", "west"), own(0.0, 0.0, 0.0, 1)))]) == {}


def test_columns_of_clients_are_totals_of_all_rounds():
    assert columns(LINES, [3, 4, 10]) == {
        "training_seconds": [4.5, 0.0, 1.5],
        "waiting_seconds": [2.0, 0.0, 1.0],
        "transfer_seconds": [0.5, 0.0, 9.0],
    }
    assert columns(LINES[:1], [3]) == {}


def test_words_fit_a_terminal_of_80_columns():
    said = list(words(slowest_summary([line(1, {"999999": own(12345.678, edge="e")}, {"east": own(), "e": own(9.0)})])))
    assert said == [
        "slowest client: 999999, 6.17e+03 s training and 0.125 s transfer an edge round",
        "slowest edge: e, 4.5 s training and 0.125 s transfer an edge round",
    ]
    assert max(map(len, said)) <= 80


@pytest.mark.usefixtures("with_png")
@pytest.mark.parametrize(("num_clients", "num_edges"), [(2, 1), (100, 8), (100, 30), (1000, 12)])
def test_the_picture_names_the_slowest_and_no_labels_overlap(tmp_path, figures, num_clients, num_edges):
    clients = {str(i): own(edge="edge-0") for i in range(num_clients)} | {"1": own(7.0, edge="edge-0")}
    edges = {f"the-edge-of-building-{i}": own() for i in range(num_edges)}
    draw_seconds(tmp_path, "title", [line(1, clients, edges)])
    figure = figures["seconds.png"]
    assert len(figure.axes) == (2 if num_edges == 1 else 4)
    assert figure.axes[0].get_title("left") == "slowest: client 1, 3.62 s"
    figure.draw_without_rendering()
    for ax in figure.axes:
        boxes = [label.get_window_extent() for label in ax.get_xticklabels() if label.get_text()]
        assert len(boxes) > 1 or num_edges == 1
        assert not any(a.overlaps(b) for a, b in pairwise(boxes))
    title = figure.axes[0]._left_title.get_window_extent()
    assert not title.overlaps(figure.axes[0].get_legend().get_window_extent())


def test_nothing_is_drawn_without_times(tmp_path):
    assert draw_seconds(tmp_path, "title", LINES[:1]) == []
