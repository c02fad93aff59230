"""The page in a real browser, where there is one: Chromium and its driver, as Debian has them."""

import json
import shutil

import pytest

from benchmarks.browser import CHROMIUM, DRIVER, browser
from espalier.app.page import server as server_module
from espalier.app.page.html import data_json, page_html
from tests.app.page.runs import HOSTILE, run_data, with_hostile_names, write_large_run
from tests.app.page.test_server import TOKEN, serving
from tests.app.runs import lines

pytestmark = [
    pytest.mark.deploy,
    pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="apt-get install chromium chromium-driver"),
]
CLIENTS = "document.querySelector('#clients')"
LAST_VALUES = """
return [...document.querySelectorAll("figure.chart")].map((chart) => [
  chart.querySelector("figcaption").textContent,
  chart.plot ? chart.plot.series.map((one) => one.label) : [],
  chart.plot ? chart.plot.data.map((values) => [...values]) : [],
]);
"""
PRESS = """
const [within, text] = arguments;
[...document.querySelectorAll(within + " button")].find((one) => one.textContent.startsWith(text)).click();
"""
TYPE = """
const [label, value] = arguments;
const field = [...document.querySelectorAll("input, select")].find((one) => one.getAttribute("aria-label") === label);
field.value = value;
field.dispatchEvent(new Event(field.tagName === "SELECT" ? "change" : "input"));
"""
ROWS = """
const rows = [...document.querySelectorAll("#clients tbody tr")];
return rows.map((row) => [...row.cells].map((one) => one.textContent));
"""


@pytest.fixture(scope="module")
def chromium():
    with browser() as own:
        yield own


def open_page(chromium, path, runs):
    path.write_text(page_html(data_json(runs)))
    chromium.open("about:blank")
    chromium.messages()  # of pages before
    chromium.open(path.as_uri())
    assert chromium.messages() == []


def test_what_is_drawn_is_what_metrics_jsonl_says(chromium, planned, tmp_path):
    open_page(chromium, tmp_path / "page.html", [run_data(planned)])
    charts = {title: dict(zip(names, data, strict=True)) for title, names, data in chromium.run(LAST_VALUES)}
    rounds = lines(planned, "global")
    for name in ("accuracy", "loss"):
        own = charts[name]
        assert own["global round"] == [line["round"] for line in rounds]
        assert own["clients, mean"] == [line[name]["mean"] for line in rounds]
        assert own["clients, lowest"] == [line[name]["min"] for line in rounds]
        assert own["whole test pool"] == [line["test"][name] for line in rounds]
    joules = charts["joules so far"]
    assert joules["all"] == [line["energy_joules"]["so_far"] for line in rounds]
    assert charts["simulated seconds so far"]["simulated"] == [line["simulated_seconds"] for line in rounds]
    sent = [sum(line["bytes"]["edge"]["uplink"].values()) for line in rounds]
    assert charts["bytes so far"]["edge uplink"] == [sum(sent[: i + 1]) for i in range(len(sent))]
    of_edge = [line["accuracy"] for line in lines(planned, "edge") if line["edge"] == "edge-1"]
    assert charts["accuracy by edge"]["edge-1"] == of_edge


def test_the_tree_says_what_each_client_did_and_why(chromium, planned, tmp_path):
    data = run_data(with_hostile_names(planned, tmp_path / "hostile"))
    open_page(chromium, tmp_path / "page.html", [data])
    chromium.run("document.querySelectorAll('#tiers details').forEach((one) => (one.open = true))")
    chips = chromium.wait("const all = document.querySelectorAll('#tiers .chip'); return all.length === 6 && "
                          "[...all].map((one) => one.textContent)")  # fmt: skip
    words = {"t": "trained", "w": "waited", "x": "left out", "d": "dropped out", "a": "away", "l": "late"}
    for client, letter in enumerate(data["states"][-1]):
        (chip,) = [text for text in chips if f" client {client}: " in text]
        assert f"client {client}: {words[letter]}" in chip
    assert any(f"left out in round 3: {HOSTILE[:40]}" in text for text in chips)
    at_first = "const [slider] = document.querySelectorAll('#tiers input'); slider.value = 0; "
    chromium.run(at_first + "slider.dispatchEvent(new Event('input'))")
    assert chromium.run("return document.querySelector('#tiers .cloud .node').textContent").startswith(
        "cloud round 1, "
    )


def test_nothing_that_a_run_says_is_executed(chromium, planned, tmp_path):
    data = run_data(with_hostile_names(planned, tmp_path / "hostile"), HOSTILE)
    for runs in ([data], [data, {**data, "label": "other", "differs": [[HOSTILE, HOSTILE]]}]):
        open_page(chromium, tmp_path / "page.html", runs)
        chromium.run("document.querySelectorAll('details').forEach((one) => (one.open = true))")
        chromium.run(TYPE, "also draw", HOSTILE)
        chromium.run(TYPE, "also draw", "__proto__")
        chromium.wait("return document.querySelectorAll('#tiers .chip').length > 0")
        assert chromium.run(
            "return [window.hacked === undefined, document.images.length, document.scripts.length]"
        ) == [
            True,
            0,
            2,
        ]
        text = chromium.run("return document.querySelector('main').textContent")
        assert text.count(HOSTILE) > 5
        assert chromium.messages() == []
    # The policy would have stopped it, too.
    chromium.run("try { document.body.innerHTML = '<img src=x onerror=window.hacked=1>' } catch {}")
    assert chromium.run("return window.hacked === undefined && document.images.length === 0")
    assert any("TrustedHTML" in message for message in chromium.messages())


def test_updates_arrive(chromium, planned, tmp_path, monkeypatch):
    monkeypatch.setattr(server_module, "EVERY_SECONDS", 0.1)
    folder = tmp_path / "run"
    shutil.copytree(planned, folder)
    for name in ("summary.json", "clients.csv"):
        (folder / name).unlink()
    content = (planned / "metrics.jsonl").read_text().splitlines(keepends=True)
    (folder / "metrics.jsonl").write_text("".join(content[:3]))
    with serving([folder], TOKEN) as server:
        chromium.open(server.url)
        assert chromium.run("return document.querySelector('.title').textContent").endswith("interrupted, round 1 of 3")
        chromium.run(TYPE, "clients: find a text", "edge-1")
        chromium.run("document.querySelector('#tiers details').open = true")
        with (folder / "metrics.jsonl").open("a") as file:
            file.writelines(content[3:])
        for name in ("summary.json", "clients.csv"):
            shutil.copy(planned / name, folder)
        title = "return document.querySelector('.title').textContent.endsWith('over, round 3 of 3')"
        chromium.wait(title)
        last = dict(zip(*chromium.run(LAST_VALUES)[0][1:], strict=True))
        assert last["clients, mean"] == [line["accuracy"]["mean"] for line in lines(planned, "global")]
        # What the reader has opened and typed stays.
        assert {row[1] for row in chromium.run(ROWS)} == {"edge-1"}
        assert chromium.run("return document.querySelector('#tiers details').open")
        assert chromium.messages() == []
    gone = "return document.querySelector('[role=status]').textContent.startsWith('espalier watch does not answer')"
    chromium.wait(gone)


def test_ten_thousand_clients_stay_usable(chromium, tmp_path):
    data = run_data(write_large_run(tmp_path / "run", clients=10_000, rounds=2))
    open_page(chromium, tmp_path / "page.html", [data])
    assert chromium.run("return document.querySelectorAll('*').length") < 3000
    assert chromium.run(f"return {CLIENTS}.querySelector('.note').textContent") == "1–50 of 10000 rows"
    begin = chromium.run("return performance.now()")
    chromium.run(PRESS, "#clients", "accuracy")
    chromium.run(PRESS, "#clients", "accuracy")
    assert [row[0] for row in chromium.run(ROWS)[:2]] == ["9999", "9998"]
    chromium.run(TYPE, "clients: column", "accuracy")
    chromium.run(TYPE, "clients: least", "0.25")
    chromium.run(TYPE, "clients: most", "0.5")
    assert chromium.run(f"return {CLIENTS}.querySelector('.note').textContent") == "1–50 of 2501 rows, of 10000 in all"
    chromium.run(TYPE, "clients: find a text", "edge-3")
    chromium.run(PRESS, "#clients", "later")
    assert chromium.run(f"return {CLIENTS}.querySelector('.note').textContent") == "51–100 of 625 rows, of 10000 in all"
    chromium.run("document.querySelector('#tiers details').open = true")
    chromium.wait("return document.querySelectorAll('#tiers .chip').length === 200")
    assert chromium.run("return performance.now()") - begin < 10_000  # milliseconds, on a busy machine


@pytest.mark.parametrize("width", [360, 1200])
def test_no_label_is_cut_off_or_on_another(chromium, planned, tmp_path, width):
    chromium.resize(width, 900)
    data = run_data(planned)
    open_page(chromium, tmp_path / "page.html", [data, {**data, "label": "a rather long name of another run"}])
    chromium.run("document.querySelectorAll('details').forEach((one) => (one.open = true))")
    wide = "return document.documentElement.scrollWidth <= window.innerWidth"
    assert chromium.run(wide)
    overlaps = """
    const boxes = [...document.querySelectorAll(
      "h1, h2, h3, figcaption, .tile, .u-legend, canvas, nav a, .chip, .node, .note, label, .scroll")]
      .filter((one) => one.checkVisibility() && !one.closest(".scroll *"));
    const found = [];
    for (const a of boxes) for (const b of boxes) {
      if (a === b || a.contains(b) || b.contains(a)) continue;
      const x = a.getBoundingClientRect(), y = b.getBoundingClientRect();
      const wide = Math.min(x.right, y.right) - Math.max(x.left, y.left);
      const high = Math.min(x.bottom, y.bottom) - Math.max(x.top, y.top);
      if (wide > 2 && high > 2) found.push([a.className || a.tagName, b.className || b.tagName, wide, high]);
    }
    return found;
    """
    assert chromium.run(overlaps) == []
    assert json.dumps(chromium.messages()) == "[]"
