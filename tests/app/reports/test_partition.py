"""Who has how much of which class: the table, and the picture of it."""

import numpy as np
import pytest
from matplotlib.figure import Figure

from espalier.app.config.parse import parse_config
from espalier.app.ground.errors import UserError
from espalier.app.reports.final import report_again
from espalier.app.reports.partition import MOST_CLASSES, blocks_of, class_counts, read_partition
from espalier.app.reports.partition_plot import draw_partition
from espalier.app.tasks.node import ClientNode
from espalier.app.wiring.task_of_run import build_task
from espalier.strategies import Profile
from tests.app.runs import run_app

SMALL = {"num_clients": 6, "num_edges": 2, "global_rounds": 1, "edge_rounds": 1, "batches_per_epoch": 1, "alpha": 0.1}


def profile(node_id, client, counts):
    return Profile(node_id, client, "", sum(counts), 1, counts)


def drawn(folder, found, monkeypatch):
    """Return the axes of the picture."""
    figures = []
    save = Figure.savefig
    monkeypatch.setattr(Figure, "savefig", lambda self, *a, **o: (figures.append(self), save(self, *a, **o)))
    assert draw_partition(folder, "a run", found).stat().st_size > 0
    return figures[-1].axes[0]


@pytest.mark.usefixtures("with_blank_pictures")
def test_a_run_writes_the_counts_of_its_clients_and_draws_them_again(tmp_path):
    folder = run_app(tmp_path / "run", **SMALL, partition="edge-iid", report_plots=True)
    found = read_partition(folder)
    assert (found.clients, found.edges) == (tuple(range(6)), ("edge-0",) * 3 + ("edge-1",) * 3)
    values = {"num-clients": 6, "num-edges": 2, "alpha": 0.1, "partition": "edge-iid"}
    task = build_task(parse_config(values))
    assert [tuple(row) for row in found.counts] == [
        task.new_client_task(task.new_model(), ClientNode(client)).class_counts for client in range(6)
    ]
    by_edge = [found.counts[first:last].sum(axis=0) for _, first, last in blocks_of(found.edges)]
    assert np.abs(by_edge[0] - by_edge[1]).max() <= 1
    (folder / "partition.png").unlink()
    report_again(folder)
    assert (folder / "partition.png").exists()


def test_without_plots_there_is_the_table_alone(tmp_path):
    folder = run_app(tmp_path / "run", **SMALL, algorithm="fedavg")
    assert (folder / "partition.csv").exists()
    assert not (folder / "partition.png").exists()
    assert set(read_partition(folder).edges) == {"cloud"}


def test_clients_stand_in_the_order_of_their_edges_and_short_counts_are_filled_up():
    profiles = [profile(9, 0, (3,)), profile(4, 1, (0, 2, 5)), profile(7, 2, (1, 1))]
    found = class_counts(profiles, {"west": [7, 9], "east": [4]}, ("a", "b", "c"))
    assert class_counts(profiles, {"east": [4]}, ("a", "b", "c", "nobody's")).counts.tolist() == [[0, 2, 5, 0]]
    assert (found.clients, found.edges, found.classes) == ((2, 0, 1), ("west", "west", "east"), ("a", "b", "c"))
    assert found.counts.tolist() == [[1, 1, 0], [3, 0, 0], [0, 2, 5]]
    assert blocks_of(found.edges) == [("west", 0, 2), ("east", 2, 3)]


@pytest.mark.parametrize("counts", [(), (1,) * (MOST_CLASSES + 1)])
def test_labels_that_are_no_classes_or_too_many_have_no_table(counts):
    assert class_counts([profile(1, 0, counts)], {"cloud": [1]}) is None


@pytest.mark.usefixtures("with_png")
@pytest.mark.parametrize("num_clients", [1, 100])
def test_none_is_white_one_is_not_and_edges_are_marked(tmp_path, monkeypatch, num_clients):
    edges = {f"edge-{e}": range(e, num_clients, 4) for e in range(min(4, num_clients))}
    profiles = [profile(i, i, (0, 1, 50 + i)) for i in range(num_clients)]
    axes = drawn(tmp_path, class_counts(profiles, edges, ("none", "one", "a class of a long name")), monkeypatch)
    (image,) = axes.images
    none, one, many = (tuple(image.to_rgba(image.get_array())[row, 0, :3]) for row in range(3))
    assert none == (1, 1, 1)
    assert max(one) - min(one) > 0.1
    assert sum(many) < sum(one) < 2.7
    assert [line.get_xdata()[0] for line in axes.lines] == ([24.5, 49.5, 74.5] if num_clients == 100 else [])
    assert [text.get_text() for text in axes.texts] == (list(edges) if num_clients == 100 else [])
    assert 1 <= len(axes.get_xticks()) <= 25
    assert [label.get_text() for label in axes.get_yticklabels()] == ["none", "one", "a class of a lo…"]


@pytest.mark.parametrize(
    "text", ["", "client,edge,a\n0,x\n", "client,edge,a\n0,x,-1\n", "client,edge\n0,x\n", "a\nb\n"]
)
def test_a_damaged_table_is_named(tmp_path, text):
    assert read_partition(tmp_path) is None
    (tmp_path / "partition.csv").write_text(text)
    with pytest.raises(UserError, match=r"partition\.csv: is damaged"):
        read_partition(tmp_path)
