"""The pictures of a run can be read: what legends name is there to see, and names lie on nothing."""

import json
from itertools import combinations, pairwise

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text

from espalier.app.features.plans.labels import label_points
from espalier.app.ground.pictures import save_plot
from espalier.app.reports.partition import ClassCounts
from espalier.app.reports.partition_plot import draw_partition
from espalier.app.reports.plots import clients_of, draw_plots, seen_kinds
from espalier.app.reports.titles import picture_title
from tests.app.assembling import config_of
from tests.app.runs import run_app

MB = 10**6


def line(number, clients, **more):
    spread = {name: {"mean": 0.5, "min": 0.0, "max": 1.0, "std": 0.1} for name in ("accuracy", "loss")}
    sent = {"edge": {"uplink": {"model": 5 * MB, "indices": 100, "config": 0}, "downlink": {"model": 4 * MB}}}
    figures = {str(client): {"accuracy": value, "loss": 1.0} for client, value in clients.items()}
    return {"scope": "global", "round": number, "clients": figures, "bytes": sent, **spread, **more}


def title_of(config):
    return picture_title(config.algorithm.name, config.data, config.federation.num_clients, config.seed)


def legend_of(ax):
    return [text.get_text() for text in ax.get_legend().get_texts()]


def test_each_picture_is_a_pdf_too_and_the_same_figures_give_the_same_bytes(tmp_path, with_pdf):
    folder = run_app(tmp_path / "run", report_plots=True, global_rounds=1, batches_per_epoch=1, edge_rounds=1)
    names = {path.stem for path in folder.glob("*.png")}
    assert (
        names == {path.stem for path in folder.glob("*.pdf")} == {"rounds", "clients", "bytes", "partition", "seconds"}
    )
    lines = [json.loads(text) for text in (folder / "metrics.jsonl").read_text().splitlines()]
    config = config_of(global_rounds=1, batches_per_epoch=1, edge_rounds=1)
    assert title_of(config) == "h-fedavg, digits, Dir(0.5), 8 clients, seed 0"
    draw_plots(tmp_path, title_of(config), lines)
    for name in ("rounds", "bytes"):
        pdf = (folder / f"{name}.pdf").read_bytes()
        assert pdf == (tmp_path / f"{name}.pdf").read_bytes()
        assert b"/Type3" not in pdf


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"partition": "shards"}, "shards"),
        ({"partition": "dirichlet-per-class", "alpha": 0.1}, "Dir(0.1) per class"),
        ({"partition": "edge-dirichlet", "alpha": 0.1}, "Dir(0.5) over edges, Dir(0.1) within"),
        ({"partition": "iid-in-edges", "edge_alpha": 2.0}, "Dir(2) over edges, iid within"),
    ],
)
def test_titles_say_how_data_are_shared_out(settings, words):
    assert title_of(config_of(**settings)) == f"h-fedavg, digits, {words}, 8 clients, seed 0"


@pytest.mark.parametrize("width", [4.8, 6.0, 9.0])
def test_a_long_title_stays_in_its_picture(tmp_path, figures, width, with_pdf):
    title = "my_package.my_module:SomeAlgorithm, digits, Dir(0.5) over edges, Dir(0.1) within, 1000 clients, seed 10"
    save_plot(tmp_path / "a.png", title, lambda axes, data: None, None, width=width)
    (written,) = figures["a.png"].texts
    box = written.get_window_extent()
    assert 0 <= box.x0 < box.x1 <= figures["a.png"].bbox.x1


def test_a_name_with_dollars_is_drawn_as_it_is_and_as_no_formula(tmp_path, with_pdf):
    name = r"$\no^^formula$"
    last = line(1, {0: 0.5}) | {name: {"mean": 0.5, "min": 0.0, "max": 1.0}, "test": {name: 0.5}}
    last["clients"]["0"][name] = 0.5
    draw_plots(tmp_path, f"a run of {name}", [last])
    draw_partition(tmp_path, name, ClassCounts((0, 1), ("a", name), ("0", name), np.ones((2, 2), dtype=int)))
    assert (tmp_path / "rounds.pdf").stat().st_size > 1000
    assert (tmp_path / "partition.pdf").stat().st_size > 1000


@pytest.mark.usefixtures("with_png")
def test_what_cannot_be_seen_has_no_place_in_the_legend_of_bytes(tmp_path, figures):
    draw_plots(tmp_path, "a run", [line(1, {0: 0.5})])
    (ax,) = figures["bytes.png"].axes
    assert legend_of(ax) == ["model"]
    assert [text.get_text() for text in ax.texts] == ["5", "4"]  # the sums above the bars
    assert sum(patch.get_height() for patch in ax.patches) == pytest.approx((9 * MB + 100) / MB)
    seen = {bars.get_label() for bars in ax.containers if max(bar.get_window_extent().height for bar in bars) >= 1}
    assert seen == {"model"}


@pytest.mark.usefixtures("with_blank_pictures")
def test_rounds_in_which_no_client_was_evaluated_show_the_test_pool(tmp_path, figures):
    first = {"scope": "global", "round": 1, "bytes": {}, "test": {"accuracy": 0.25, "mae": None, "loss": 2.0}}
    draw_plots(tmp_path, "a run", [first, first | {"round": 2}])
    axes = figures["rounds.png"].axes
    assert [ax.get_ylabel() for ax in axes] == ["test accuracy", "test loss"]
    assert legend_of(axes[0]) == ["whole test pool"]
    assert axes[0].lines[0].get_ydata().tolist() == [0.25, 0.25]
    assert "clients.png" not in figures


@pytest.mark.usefixtures("with_png")
def test_a_run_that_sends_nothing_says_so(tmp_path, figures):
    draw_plots(tmp_path, "a run", [line(1, {0: 0.5}) | {"bytes": {}}])
    (ax,) = figures["bytes.png"].axes
    assert ([text.get_text() for text in ax.texts], ax.get_yticks().tolist()) == (["nothing was sent"], [])


def test_small_kinds_that_can_be_seen_together_are_named_together():
    totals = {"up": {"model": 10.0, "labels": 0.07, "indices": 0.06, "config": 0.0}, "down": {"model": 9.0}}
    assert seen_kinds(totals, 10.0) == {"model": [10.0, 9.0], "other: indices, labels": [0.13, 0.0]}
    assert list(seen_kinds(totals, 20.0)) == ["model", "_other: indices, labels"]
    assert seen_kinds({}, 0.0) == {}


@pytest.mark.usefixtures("with_blank_pictures")
def test_eq_17_is_told_in_words_where_it_applies(tmp_path, figures):
    edge = {"scope": "edge", "participants": [[0, 1]], "failures": []}
    draw_plots(tmp_path, "a run", [edge, line(1, {0: 0.5}, closed_form_bits={"phi_phsfl": 8.0 * MB, "phi_hfl": 1.0})])
    *measured, formula = legend_of(figures["bytes.png"].axes[0])
    assert measured == ["model"]
    assert "eq. 17 of the PHSFL" in formula
    assert figures["bytes.png"].axes[0].texts[-1].get_text() == "2"


@pytest.mark.usefixtures("with_blank_pictures")
def test_nothing_and_no_figure_are_told_apart(tmp_path, figures):
    edge = {"scope": "edge", "participants": [[4], [0]], "failures": [{"client": 7}, {"client": None}]}
    lines = [edge, line(1, {0: 0.5, 1: 0.0, 2: None, 3: 0.0})]
    assert clients_of(lines) == ["0", "1", "2", "3", "4", "7"]
    draw_plots(tmp_path, "a run", lines)
    (ax,) = figures["clients.png"].axes
    assert legend_of(ax) == ["mean 0.167", "exactly 0: 2 clients", "no figure: 3 clients"]
    marked = {one.get_label(): one.get_xdata().tolist() for one in ax.lines[1:]}
    assert list(marked.values()) == [[1, 3], [2, 4, 5]]
    assert [label.get_text() for label in ax.get_xticklabels()] == ["0", "1", "2", "3", "4", "7"]


@pytest.mark.usefixtures("with_png")
@pytest.mark.parametrize("num_clients", [8, 100, 1000])
def test_names_of_clients_do_not_touch(tmp_path, figures, num_clients):
    last = line(1, {client: client / num_clients for client in range(num_clients)})
    draw_plots(tmp_path, "a run", [last, {"scope": "personalised", "failures": [], "clients": last["clients"]}])
    for name in ("clients.png", "personalised.png"):
        figures[name].draw_without_rendering()
        for ax in figures[name].axes:
            boxes = [label.get_window_extent() for label in ax.get_xticklabels()]
            assert 8 <= len(boxes) <= 30
            assert all(left.x1 < right.x0 for left, right in pairwise(boxes))


@pytest.mark.parametrize(("num_clients", "spread", "most_without"), [(8, 400, 0), (100, 300, 15), (100, 30, 80)])
def test_no_two_names_of_points_lie_on_each_other_or_on_a_point(num_clients, spread, most_without):
    stations = np.array([(x, y) for x in (0.0, 800.0) for y in (0.0, 800.0)])
    rng = np.random.default_rng(0)
    places = stations[np.arange(num_clients) % 4] + rng.normal(scale=spread / 2, size=(num_clients, 2))
    figure = Figure(figsize=(7.0, 6.0), layout="constrained")
    ax = figure.subplots()
    ax.scatter(*places.T, s=36)
    ax.scatter(*stations.T, s=36, marker="^")
    without = label_points(ax, [str(i) for i in range(num_clients)], places, stations, size=36)
    assert len(without) <= most_without
    assert f"({len(without)} of 100" in ax.get_xlabel() or not without
    figure.draw_without_rendering()
    boxes = [Text.get_window_extent(text) for text in ax.texts]  # without the line to the point
    assert len(boxes) == num_clients - len(without)
    assert not any(one.overlaps(other) for one, other in combinations(boxes, 2))
    centres = ax.transData.transform(np.concatenate([places, stations]))
    radius = 3.0 * figure.dpi / 72
    for box in boxes:
        nearest = np.clip(centres, (box.x0, box.y0), (box.x1, box.y1))
        assert np.linalg.norm(centres - nearest, axis=1).min() > radius - 0.5
