"""What Prometheus reads of runs and edge hosts is what their lines say."""

import json
import re
import socket
import urllib.error
import urllib.request

import pytest

from espalier.app.command_line import main
from tests.app.runs import ROOT, lines, run_app
from tests.app.tiers.hosts import SMALL, edge_hosts, run_cloud

pytest.importorskip("prometheus_client")
from prometheus_client.parser import text_string_to_metric_families

from espalier.app.features.monitoring.exporter import MOST_REASONS, Exporter, served

READ: list[dict] = []
LOST = {"availability.mode": "markov", "availability.drop-out": 0.3}


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def scraped(port: int) -> dict:
    """Return all values by name and labels."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as reply:
        families = text_string_to_metric_families(reply.read().decode())
        return {(s.name, *sorted(s.labels.values())): s.value for family in families for s in family.samples}


class Scraper:
    """A tracker that reads, after every round, what is served."""

    def __init__(self, port):
        self.port = port

    def round_over(self, number, line):
        READ.append(scraped(self.port))


def bytes_in(every, tier, direction):
    return sum(sum(line["bytes"].get(tier, {}).get(direction, {}).values()) for line in every)


def test_a_run_serves_what_its_lines_say_until_it_is_over(tmp_path):
    port = free_port()
    READ.clear()
    settings = {"algorithm": "h-fedavg-m1", "num_clients": 4, "num_edges": 2, "batches_per_epoch": 1, **LOST}
    tracker = f"{__name__}:Scraper(port={port})"
    folder = run_app(tmp_path / "run", metrics_port=port, report_tracker=tracker, **settings)
    rounds, failures = lines(folder, "global"), [one for line in lines(folder, "edge") for one in line["failures"]]
    assert [read["espalier_rounds",] for read in READ] == [1, 2]
    last = READ[-1]
    assert last["espalier_connected_nodes",] == 4
    assert last["espalier_last_round_seconds",] == rounds[-1]["seconds"]
    for tier in ("edge", "cloud"):
        for direction in ("uplink", "downlink"):
            counted = last["espalier_bytes_total", *sorted((tier, direction))]
            assert counted == bytes_in(rounds, tier, direction) > 0
    left_out = sum(value for (name, *_), value in last.items() if name == "espalier_left_out_total")
    assert left_out == len(failures) == last["espalier_left_out_total", "it dropped out before it answered"] > 0
    assert last["espalier_late_total",] == 0
    with pytest.raises(urllib.error.URLError):
        scraped(port)


class AtTheEnd(Scraper):
    """Likewise, after the last round alone."""

    def round_over(self, number, line):
        pass

    def run_over(self, summary):
        READ.append(scraped(self.port))


def test_a_run_that_goes_on_serves_the_round_after_which_it_does(tmp_path):
    port = free_port()
    READ.clear()
    tracker = f"{__name__}:AtTheEnd(port={port})"
    folder = run_app(tmp_path / "run", metrics_port=port, report_tracker=tracker, num_clients=2)
    assert main([f"resume={folder}"]) == 0  # no round is left
    seconds = lines(folder, "global")[-1]["seconds"]
    told = [(read["espalier_rounds",], read["espalier_last_round_seconds",]) for read in READ]
    assert told == [(2, seconds)] * 2


def test_an_edge_host_serves_its_own(tmp_path):
    port, read, settings = free_port(), [], {**SMALL, "num_clients": 2, "num_edges": 1}
    with edge_hosts(tmp_path, {"edge-0": [0, 1]}, metrics_port=port, **settings) as hosts:
        run_cloud(tmp_path / "cloud", hosts, lambda number: read.append(scraped(port)), **settings)
        every = [json.loads(line) for line in (hosts[0].results / "metrics.jsonl").read_text().splitlines()]
        last = scraped(port)
    assert [one["espalier_rounds",] for one in read] == [1, 2]
    assert last["espalier_connected_nodes",] == 2
    assert last["espalier_bytes_total", "edge", "uplink"] == bytes_in(every, "edge", "uplink") > 0


def edge(*failures, late=()):
    plans = [{"edge_round": number, "late": list(plan)} for number, plan in enumerate(late, 1)]
    given = {"round": 1, "scope": "edge", "seconds": 1.0, "bytes": {}, "plans": plans}
    return given | {"failures": [{"edge_round": 1, "client": client, "reason": reason} for client, reason in failures]}


def value_of(exporter, name, **labels):
    return exporter.registry.get_sample_value(name, labels)


def test_late_results_count_once_and_reasons_go_without_their_numbers():
    exporter = Exporter(lambda: 3)
    deadline = "no result within the deadline of 60 s"
    exporter.lines_over(
        [edge((1, deadline), (2, "its update is 37 long"), (None, "nobody is there"), late=([1, 3], [1]))]
    )
    exporter.lines_over([edge((2, "its update is 1e+12 long"), (4, "no reply before the deadline"))])
    assert value_of(exporter, "espalier_late_total") == 4
    assert value_of(exporter, "espalier_left_out_total", reason="its update is N long") == 2
    assert value_of(exporter, "espalier_left_out_total", reason="nobody is there") is None
    exporter.lines_over([edge(*((1, "fault " + "x" * size) for size in range(50)))])
    reasons = [s.labels["reason"] for one in exporter.registry.collect() for s in one.samples if "reason" in s.labels]
    assert len(set(reasons)) == MOST_REASONS + 1
    assert value_of(exporter, "espalier_left_out_total", reason="other") == 50 - (MOST_REASONS - 3)


def test_late_results_count_once_where_an_edge_round_has_no_plan():
    exporter = Exporter(lambda: 3)
    line = edge()
    line["plans"] = [{"edge_round": 2, "late": [1, 3]}]  # all were away in edge round 1
    line["failures"] = [{"edge_round": 2, "client": 1, "reason": "no result within the deadline of 60 s"}]
    exporter.lines_over([line])
    assert value_of(exporter, "espalier_late_total") == 2


def test_a_runtime_that_is_gone_leaves_the_other_figures():
    def gone():
        raise ConnectionError

    nodes = value_of(Exporter(gone), "espalier_connected_nodes")
    assert nodes != nodes  # NaN


def test_a_port_that_is_taken_gets_one_line_before_training(tmp_path, capsys):
    port = free_port()
    with served("127.0.0.1", port, lambda: 0):
        assert main([f"deploy.metrics-port={port}", f"output-dir={tmp_path / 'run'}"]) == 2
    (error,) = capsys.readouterr().err.splitlines()
    assert error.startswith(
        f"error: deploy.metrics-port = {port}: allowed is a port that is free at deploy.metrics-addr"
    )
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("address", ["no.invalid", "a..b", "192.0.2.1"])
def test_an_address_of_no_machine_or_of_another_gets_one_line_before_training(tmp_path, capsys, address):
    given = [f"deploy.metrics-port={free_port()}", f"deploy.metrics-address={address}"]
    assert main([*given, f"output-dir={tmp_path / 'run'}"]) == 2
    (error,) = capsys.readouterr().err.splitlines()
    assert error.startswith(f"error: deploy.metrics-address = '{address}': allowed is an address of this machine (")
    assert not (tmp_path / "run").exists()


def test_the_dashboard_shows_what_is_served():
    exporter = Exporter(lambda: 1)
    exporter.lines_over([edge((1, "gone")) | {"bytes": {"edge": {"uplink": {"model": 1}}}}])
    known = {sample.name for family in exporter.registry.collect() for sample in family.samples}
    board = json.loads((ROOT / "deploy/grafana/espalier.json").read_text())
    queries = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    named = {name for query in queries for name in re.findall(r"espalier_\w+", query)}
    assert named == {name for name in known if not name.endswith("_created")}
