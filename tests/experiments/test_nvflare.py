"""NVFlare's CIFAR-10 example: the model and the splits of its tables, and a table of what is recorded."""

import numpy as np
import pytest
import torch

from espalier.app.command_line import main as app
from experiments.nvflare import PUBLISHED, ROWS, SETTINGS, main, moderate_cnn, published_split
from experiments.recorded_rounds import RoundLine
from experiments.recorded_runs import write_lines
from tests.app.pictures import image_folder
from tests.app.runs import lines

LABELS = np.repeat(np.arange(10), 5_000)


def test_the_model_has_the_published_sizes():
    model = moderate_cnn(10, (3, 32, 32))
    assert [sum(p.numel() for p in block.parameters()) for block in model] == [
        896 + 18_496,
        73_856 + 147_584,
        295_168 + 590_080,
        2_097_664,
        262_656,
        5_130,
    ]
    assert model(torch.zeros(2, 3, 32, 32)).shape == (2, 10)


@pytest.mark.parametrize(
    ("alpha", "sizes", "first"),  # printed by the example's own lines
    [
        (1.0, [7410, 4059, 6653, 6441, 6883, 6592, 5597, 6365], [1350, 210, 289, 594, 375, 258, 120, 918, 1147, 2149]),
        (0.5, [7363, 2013, 6580, 4548, 7346, 8302, 8128, 5720], [1231, 1187, 614, 995, 1, 485, 2850, 0, 0, 0]),
        (0.3, [8645, 1183, 6749, 8105, 5177, 6677, 6685, 6779], [1474, 1438, 555, 1177, 13, 487, 3501, 0, 0, 0]),
        (0.1, [9244, 5030, 7225, 2009, 2876, 7890, 7483, 8243], [1587, 1632, 89, 1119, 0, 23, 4794, 0, 0, 0]),
    ],
)
def test_the_splits_are_the_published_ones(alpha, sizes, first):
    held = published_split(LABELS, 8, alpha)
    assert list(map(len, held)) == sizes
    assert np.bincount(LABELS[held[0]], minlength=10).tolist() == first
    assert np.array_equal(np.sort(np.concatenate(held)), np.arange(50_000))


def test_the_sweep_has_the_published_rows_and_as_many_passes():
    assert list(ROWS.planned) == list(PUBLISHED)
    for row, settings in ROWS.planned.items():
        passes = settings["global-rounds"] * settings["local-epochs"]
        assert passes == (25 if row.startswith("central") else 25 * 8)


def test_the_settings_train_and_a_shorter_run_is_not_recorded(tmp_path):
    folder, run = image_folder(tmp_path / "images"), tmp_path / "run"
    row = ROWS.planned["FedOpt, alpha 0.1"]
    short = ["num-clients=2", "global-rounds=2", "local-epochs=1", f"data-dir={folder}", f"output-dir={run}"]
    assert app([str(SETTINGS), *short, f"cloud-strategy={row['cloud-strategy']}"]) == 0
    assert [line["round"] for line in lines(run, "global")] == [1, 2]
    with pytest.raises(SystemExit, match=r"^error: .*run: num-clients = 2: allowed is 8, as in nvflare-cifar10.toml$"):
        main([str(run), "--csv", str(tmp_path / "runs.csv")])


def test_too_few_images_are_refused():
    with pytest.raises(
        ValueError, match=r"^80 images: allowed are so many that each of 8 clients gets 10 in one of 1000"
    ):
        published_split(LABELS[:80], 8, 0.1)


def test_the_table_has_the_last_accuracy_beside_the_published_one(tmp_path, capsys):
    def rounds_of(row, seed, accuracies):
        return [RoundLine(row, seed, n, a, n, "abc", "a machine, 2 cores") for n, a in enumerate(accuracies, 1)]

    recorded = [*rounds_of("SCAFFOLD, alpha 0.1", 0, (0.5, 0.7)), *rounds_of("FedAvg, alpha 1", 0, (0.9, 0.8))]
    write_lines(RoundLine, tmp_path / "runs.csv", [*recorded, *rounds_of("FedAvg, alpha 1", 1, (0.1, 0.6))])
    main(["--csv", str(tmp_path / "runs.csv")])
    assert capsys.readouterr().out.splitlines() == [
        "| | accuracy | published |",
        "|---|---|---|",
        "| FedAvg, alpha 1 | 0.7000±0.1414 | 0.8911 |",
        "| SCAFFOLD, alpha 0.1 | 0.7000 | 0.8260 |",
    ]
