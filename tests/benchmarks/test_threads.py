"""What threads gain, as the page on speed says it, is what was recorded."""

import csv
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_page_says_what_was_recorded_and_threads_change_no_bit():
    with (ROOT / "docs/data/threads.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    ratios = {model: sorted(row["ratio"] for row in rows if row["model"] == model) for model in ("cnn", "small-cnn")}
    cnn, small = (" and ".join(f"{float(ratio):.2f}" for ratio in ratios[model]) for model in ratios)
    said = f"{cnn} times one thread's speed (`cnn`), {small} (the demo's)"
    assert said in (ROOT / "docs/benchmarks.md").read_text(encoding="utf-8")
    assert {row["same_bits"] for row in rows} == {"True"}
    assert not any(row["commit"].endswith("+changes") for row in rows)
