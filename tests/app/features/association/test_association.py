"""Which client goes to which edge: as the library says, and the run is that of clients who were put there by hand."""

import csv

import numpy as np
import pytest

from espalier.app.command_line import main
from espalier.app.config.parse import parse_config, read_arguments
from espalier.app.features.association.placing import problem_of
from espalier.app.features.association.reports import Costs, cost_of, words
from espalier.app.ground.errors import UserError
from espalier.strategies.allocation.association import ASSOCIATIONS, all_associations, optimum
from tests.app.assembling import config_of, engine_of, federation_of
from tests.app.runs import ROOT, lines, run_app, same_weights, summary
from tests.app.tiers.test_served import same_runs

SMALL = {
    "algorithm": "rawhfl",
    "num_clients": 8,
    "num_edges": 2,
    "seed": 1,
    "fading": "static",
    "selected_per_edge": 2,
    "batches_per_epoch": 2,
    "batch_size": 8,
    "max_local_rounds": 2,
}
BLOCKS = {"edge-0": [0, 1, 2, 3], "edge-1": [4, 5, 6, 7]}


def assembled(**settings):
    config = config_of(**SMALL | {"engine": "in-process"} | settings)
    return config, federation_of(config, engine_of(config).grid)


def places(edges):
    """Return the number of each client's edge."""
    edge_of = {client: int(name[-1]) for name, members in edges.items() for client in members}
    return np.array([edge_of[client] for client in sorted(edge_of)])


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return run_app(tmp_path_factory.mktemp("cheapest") / "run", **SMALL, association="cheapest", report_plots=False)


@pytest.mark.parametrize("name", ASSOCIATIONS)
def test_clients_are_under_the_edges_that_the_library_says(name):
    config, federation = assembled(association=name)
    problem, found = problem_of(config, federation.world), places(federation.edges)
    np.testing.assert_array_equal(found, ASSOCIATIONS[name](problem))
    best = optimum(problem, all_associations(8, 2)).cost
    gains = federation.world.lasting_gains()
    if name == "nearest":
        np.testing.assert_array_equal(found, gains.argmax(axis=1))
        assert (found != places(BLOCKS)).any()
    if name == "balanced":
        assert np.ptp(np.bincount(found)) <= 1
    if name == "cheapest":
        costs = [cost_of(problem, other(problem))["cost"] for other in ASSOCIATIONS.values()]
        ours, given = cost_of(problem, found)["cost"], cost_of(problem, places(BLOCKS))["cost"]
        assert best.min() * (1 - 1e-6) <= ours <= min(*costs, given * 0.9)
        assert ours < best.min() * 1.005
    # They talk to the base stations of these edges, with the devices and at the places that they had.
    seen, before = federation.world.problem(3, np.arange(8), None, 0), assembled()[1].world
    np.testing.assert_array_equal(seen.cell, found)
    np.testing.assert_array_equal(seen.gain, gains[np.arange(8), found])
    for now, then in zip(federation.world.describe()["clients"], before.describe()["clients"], strict=True):
        assert (now["edge"], now["cell"]) == (f"edge-{found[now['client']]}", found[now["client"]])
        assert (now["max_power_watts"], now["cycles_per_bit"]) == (then["max_power_watts"], then["cycles_per_bit"])
        assert (now["x_metres"], now["y_metres"]) == pytest.approx((then["x_metres"], then["y_metres"]))


def test_hfels_inputs_are_the_runs_devices_work_and_links():
    config, federation = assembled(edge_rounds=3, energy_weight=2.0, delay_weight=0.25, hfel_bandwidth_hz=2e6)
    problem, seen = problem_of(config, federation.world), federation.world.problem(1, np.arange(8), None, 0)
    np.testing.assert_array_equal(problem.cycles, 2 * seen.cycles_per_local_round[:, 0])
    noise = 10 ** (-174 / 10) / 1000 * 2e6
    snr = seen.gain * seen.max_power_watts / noise
    own = problem.upload_seconds[np.arange(8), places(BLOCKS)]
    np.testing.assert_allclose(own, seen.payload_bits[:, 0] / (2e6 * np.log2(1 + snr)))
    assert (problem.edge_rounds, problem.energy_weight, problem.delay_weight) == (3, 2.0, 0.25)
    cost = cost_of(problem, places(BLOCKS))
    assert cost["cost"] == pytest.approx(2.0 * cost["joules"] + 0.25 * cost["seconds"])
    assert cost["seconds"] > 3 * own.max()


@pytest.mark.parametrize("sizes", [{}, {"num_clients": 6, "num_edges": 4, "selected_per_edge": 1, "seed": 3}])
def test_places_alone_decide_where_the_channel_is_redrawn(sizes):
    given = assembled(fading="redrawn", **sizes)[1].edges
    assert given == BLOCKS or sizes
    for name in ("nearest", "balanced"):
        assert assembled(association=name, fading="redrawn", **sizes)[1].edges == given


def test_costs_are_in_the_summary_and_the_table(whole):
    config, federation = assembled(association="cheapest")
    problem, found = problem_of(config, federation.world), places(federation.edges)
    assert summary(whole)["association"] == {
        "name": "cheapest",
        "chosen": cost_of(problem, found),
        "given": cost_of(problem, places(BLOCKS)),
        "clients_moved": int((found != places(BLOCKS)).sum()),
    }
    assert ["association" in line for line in lines(whole, "global")] == [True, False]
    cost = {"cost": 1.5, "joules": 2.0, "seconds": 1.0}
    said = {"name": "cheapest", "chosen": cost, "given": cost | {"cost": 2.0, "joules": 3.0}, "clients_moved": 2}
    assert list(words({"association": said})) == [
        "HFEL's cost of a global round: 1.5 (2 J, 1 s), association cheapest",
        "as given: 2 (3 J, 1 s); clients at another edge: 2",
    ]
    assert next(iter(words(summary(whole)))).endswith("association cheapest")


def test_the_docs_show_what_the_command_prints():
    page = (ROOT / "docs/association.md").read_text()
    command = page.partition("python -m app ")[2].partition("```")[0].replace("\\", "").split()
    config = parse_config(read_arguments(command) | {"engine": "in-process"})
    (costs,) = [part for part in federation_of(config, engine_of(config).grid).parts if isinstance(part, Costs)]
    assert "\n".join(words({"association": costs.line})) in page


def test_the_run_is_that_of_clients_who_were_put_there_by_hand(whole, tmp_path):
    by_hand, trace = tmp_path / "moves.csv", tmp_path / "trace.csv"
    found = places(assembled(association="cheapest")[1].edges)
    by_hand.write_text("client,from,edge\n" + "".join(f"{i},1,edge-{edge}\n" for i, edge in enumerate(found)))
    with (whole / "radio-trace.csv").open(newline="") as file:
        rows = [
            (row["edge_round"], int(row["client"]) // 4, row["client"], row["gain"]) for row in csv.DictReader(file)
        ]
    with trace.open("w", newline="") as file:
        csv.writer(file).writerows([("edge_round", "cell", "client", "gain"), *rows])
    other = run_app(tmp_path / "run", **SMALL, availability_moves=str(by_hand), radio_trace=str(trace))
    assert same_weights(whole, other)
    for key in ("plans", "participants", "edge"):
        assert [line[key] for line in lines(whole, "edge")] == [line[key] for line in lines(other, "edge")]
    assert {client for line in lines(whole, "edge") for plan in line["plans"] for client in plan["eligible"]} > {0}


def test_a_resumed_run_has_the_same_bits(whole, tmp_path):
    half = run_app(tmp_path / "half", **SMALL | {"global_rounds": 1}, association="cheapest")
    assert main([f"resume={half}", "global-rounds=2"]) == 0
    assert same_weights(whole, half)
    assert summary(half)["association"] == summary(whole)["association"]
    for key in ("plans", "participants"):
        assert [line[key] for line in lines(whole, "edge")] == [line[key] for line in lines(half, "edge")]


def test_workers_of_ray_give_the_same_bits(ray_here, whole, tmp_path):
    there = run_app(tmp_path / "there", **SMALL, association="cheapest", engine="ray", ray_workers=2)
    assert same_runs(whole, there)


def test_an_edge_without_clients_is_left_out(tmp_path):
    settings = SMALL | {"num_edges": 4, "num_clients": 5, "selected_per_edge": 1, "association": "nearest", "seed": 3}
    folder = run_app(tmp_path / "run", **settings | {"global_rounds": 1})
    found = {line["edge"] for line in lines(folder, "edge")}
    assert 1 < len(found) < 4
    assert main([f"resume={folder}", "global-rounds=2"]) == 0
    assert {line["edge"] for line in lines(folder, "edge")} == found


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"algorithm": "fedavg"}, "'given' for fedavg without edges"),
        ({"algorithm": "h-fedavg"}, "'given' without the radio world of plans: set selection='resource-aware', or alg"),
        ({"resources": "measured", "engine": "flower"}, "'given' for plan.resources = 'measured': it needs the simul"),
        ({"role": "cloud", "engine": "flower"}, "'given' for deploy.role = 'cloud': each host has its own clients"),
        ({"edge_names": "west,east", "engine": "flower"}, "'given' for edge-names = 'west,east': nodes name their edg"),
        ({"availability_moves": "moves.csv"}, "'given' for availability.moves, by which clients move: it holds for t"),
        ({"speed_metres_per_second": 1.0}, "'given' for radio.speed-metres-per-second, by which clients move"),
        ({"radio_trace": "trace.csv"}, "'given' for radio.trace = 'trace.csv', which says whose cell a client is in"),
        ({"partition": "edge-dirichlet"}, "'given' for partition = 'edge-dirichlet': data belong to the edges"),
        ({"algorithm": "phsfl", "selection": "resource-aware"}, "'given' for phsfl: HFEL's clients train whole models"),
        ({"async_mode": "fedasync"}, "'given' for async.mode = 'fedasync': HFEL's edges wait for each other"),
        ({"num_clients": 49}, "'nearest', or num-clients of at most 48 (here 49), whose pairs its search tries"),
    ],
)
def test_where_nothing_can_be_associated_it_is_refused(settings, why):
    with pytest.raises(UserError) as refused:
        config_of(**SMALL | settings, association="cheapest")
    assert str(refused.value).startswith(f"association = 'cheapest': allowed is {why}")


def test_nodes_that_name_their_edges_are_refused():
    config = config_of(**SMALL, association="nearest", engine="flower")
    nodes = [{"edge-name": "west" if i < 4 else "east"} for i in range(8)]
    with pytest.raises(UserError, match=r"association = 'nearest': client 0 names its edge-name, 'west': allowed is"):
        federation_of(config, engine_of(config, nodes).grid)
