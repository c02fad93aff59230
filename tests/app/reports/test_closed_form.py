"""The PHSFL paper's eq. 17 beside the bytes that were measured."""

import json

import pytest
from flwr.app import ArrayRecord

from espalier.app.command_line import main
from espalier.app.reports.closed_form import closed_form_bits, closed_form_bytes
from espalier.app.settings.sections import TrainSettings
from espalier.strategies import Profile
from tests.app.runs import lines, run_app, summary
from tests.strategies.split.federation import SHAPE, tiny_model

# digits: 16x16 values of a sample pass the cut, the client block has 160 parameters, the model 13,706.
SHORT = {"algorithm": "hsfl", "batches_per_epoch": 3, "batch_size": 16, "local_epochs": 2, "edge_rounds": 2}
FLOATS = 33 * (2 * 3 * 2 * 16 * 256 + 2 * 160)
INDICES = 2 * 3 * 16


def bars(figure):
    """Return the height of the bars by their label, in megabytes."""
    (ax,) = figure.axes
    labels = [label.get_text().replace("\n", " ") for label in ax.get_xticklabels()]
    heights = dict.fromkeys(labels, 0.0)
    for patch in ax.patches:
        heights[labels[round(patch.get_x() + patch.get_width() / 2)]] += patch.get_height()
    return heights


def every_line(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.usefixtures("with_blank_pictures")
def test_every_round_and_the_plot_have_what_the_formula_gives(tmp_path, figures):
    folder = run_app(tmp_path / "run", participation=0.5, report_plots=True, **SHORT)
    for line in lines(folder, "global"):
        bits = line["closed_form_bits"]
        assert FLOATS + INDICES * 5 <= bits["phi_phsfl"] <= FLOATS + INDICES * 12
        assert bits["phi_hfl"] == 2 * 33 * 13_706
    assert bits == summary(folder)["closed_form"]
    # 2 global rounds of 2 edge rounds, in each 2 of the 4 clients of each of the 2 edges.
    expected = bits["phi_phsfl"] / 8 * 2 * 2 * 2 * 2
    assert closed_form_bytes(every_line(folder)) == pytest.approx(expected)
    heights = bars(figures["bytes.png"])
    assert list(heights)[-1] == "eq. 17 both directions"
    assert heights["eq. 17 both directions"] == pytest.approx(expected / 1e6)
    kinds = summary(folder)["bytes_by_kind"]["edge"]
    for direction in ("uplink", "downlink"):
        assert heights[f"edge {direction}"] == pytest.approx(sum(kinds[direction].values()) / 1e6)


def test_a_client_that_was_left_out_is_not_counted():
    bits = {"phi_phsfl": 80.0, "phi_hfl": 1.0}
    edge, cloud = {"scope": "edge", "participants": [[0, 1], [1]]}, {"scope": "global", "closed_form_bits": bits}
    assert closed_form_bytes([edge, {**edge, "participants": [[], [3]]}, cloud]) == 40.0


@pytest.mark.usefixtures("with_blank_pictures")
@pytest.mark.parametrize(
    "settings",
    [
        {"algorithm": "h-fedavg"},
        {"algorithm": "hsfl", "selection": "resource-aware", "selected_per_edge": 1, "max_local_rounds": 1},
        {"algorithm": "hsfl", "dataset": "video-caching", "label_policy": "labels", "fine_tune_steps": 0},
    ],
    ids=["nothing split", "plans", "data that grow"],
)
def test_what_the_formula_is_not_for(tmp_path, figures, settings):
    folder = run_app(tmp_path / "run", num_clients=4, batches_per_epoch=1, report_plots=True, **settings)
    assert all("closed_form_bits" not in line for line in lines(folder, "global"))
    assert "closed_form" not in summary(folder)
    assert closed_form_bytes(every_line(folder)) is None
    assert list(bars(figures["bytes.png"])) == ["cloud downlink", "cloud uplink", "edge downlink", "edge uplink"]


@pytest.mark.usefixtures("with_blank_pictures")
def test_rounds_from_before_the_figure_was_kept_are_counted_in_a_resumed_run(tmp_path, figures):
    folder = run_app(tmp_path / "run", report_plots=True, num_clients=4, **SHORT)
    old = [{key: value for key, value in line.items() if key != "closed_form_bits"} for line in every_line(folder)]
    (folder / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in old))
    assert main([f"resume={folder}"]) == 0  # nothing left to do: reports without the figure
    assert "eq. 17 both directions" not in bars(figures["bytes.png"])
    assert main([f"resume={folder}", "global-rounds=3"]) == 0
    assert ["closed_form_bits" in line for line in lines(folder, "global")] == [False, False, True]
    expected = summary(folder)["closed_form"]["phi_phsfl"] / 8 * 3 * 2 * 4
    assert bars(figures["bytes.png"])["eq. 17 both directions"] == pytest.approx(expected / 1e6)


def test_the_statistics_of_batchnorm_count_since_they_travel():
    model = tiny_model()
    assert list(model[:1].buffers())
    travels = {cut: sum(a.numpy().size for a in ArrayRecord(model[:cut].state_dict()).values()) for cut in (1, 4)}
    train = TrainSettings(local_epochs=1, batch_size=32)
    bits = closed_form_bits(model, SHAPE, (1,), train, [Profile(1, 0, "", 64, 1, (64,))])
    samples = 2 * 32  # of two mini-batches, with 256 values each at the cut and an index of 6 + 1 bits
    assert bits["phi_phsfl"] == 33 * 2 * (samples * 256 + travels[1]) + samples * 7
    assert bits["phi_hfl"] == 33 * 2 * travels[4]


def test_each_client_counts_its_own_cut_and_a_last_mini_batch_that_is_not_full():
    model, train = tiny_model(), TrainSettings(local_epochs=1, batch_size=32)

    def bits(*profiles):
        return closed_form_bits(model, SHAPE, (1, 2), train, profiles)["phi_phsfl"]

    first, second = (Profile(1 + i, i, "", 65, 1, (65,)) for i in range(2))
    travels = sum(a.numpy().size for a in ArrayRecord(model[:1].state_dict()).values())
    assert bits(first) == 33 * 2 * (3 * 32 * 256 + travels) + 3 * 32 * 8
    assert bits(second) != bits(first)
    assert bits(first, second) == (bits(first) + bits(second)) / 2
