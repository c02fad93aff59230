"""Edges on hosts of their own give what the same edges give in one run."""

import json

import pytest
import torch

from espalier.app.ground.checkpoint import load_state
from espalier.app.run.run import run
from espalier.app.tiers import remote_edge
from espalier.app.tiers.remote_edge import reply_of
from espalier.clients.messages.edge import TRAIN_EDGE
from espalier.clients.shared.arrays import to_weights
from tests.app.assembling import config_of, engine_of
from tests.app.runs import kept_of, lines, rows_of_clients, run_app, same_weights, summary
from tests.app.tiers.hosts import SMALL, Watching, edge_hosts, run_cloud

OF_BYTES = ("bytes", "bytes_by_kind", "personalisation_bytes_by_kind")
TWO = {"edge-0": [0, 1], "edge-1": [2, 3]}
CASES = {
    # Both tiers hold state.
    "h-fedavg": {
        "edge_strategy": "FedAdam(eta=0.05)",
        "cloud_strategy": "FedAvgM(server_momentum=0.5, server_learning_rate=0.9)",
    },
    "phsfl": {"algorithm": "phsfl", "fine_tune_steps": 3, "cut_layer": "1,2"},
    "fedbabu": {"algorithm": "fedbabu", "fine_tune_steps": 3, "fedbabu.tunes": "all"},
    "sfl-v2": {"algorithm": "sfl-v2", "server_optimizer": "adam", "server_learning_rate": 0.01},
    "rawhfl": {
        "algorithm": "rawhfl",
        "dataset": "video-caching",
        "num_clients": 6,
        "selected_per_edge": 2,
        "max_local_rounds": 3,
        "learning_rate": 0.05,
        "report_evaluate_every": 0,  # of the last round alone: most of the time of such a run
    },
    "best-cut": {
        "algorithm": "hsfl",
        "selection": "resource-aware",
        "cut_layer": "best",
        "weighting": "equal",
        "selected_per_edge": 1,
        "max_local_rounds": 3,
        "fine_tune_steps": 2,
    },
    "compressed": {"compress_client": "int8", "compress_edge": "qsgd(levels=7)"},
    "compressed-blocks": {"algorithm": "hsfl", "compress_edge": "float16"},
    "secure": {"secure.aggregation": True, "num_clients": 6},
    "own-task": {"task": "tests.app.own_tasks:Values", "batch_size": 8},
    "own-split-task": {
        "task": "tests.app.own_tasks:Steered",
        "algorithm": "phsfl",
        "batch_size": 8,
        "validation_share": 0.2,
    },
}


def same_figures(left, right, *, bytes_too=False):
    """Compare reports, apart from real time."""
    without = {"seconds", "wall_seconds", *(() if bytes_too else OF_BYTES)}
    for scope in ("edge", "global", "personalised"):
        assert [{k: v for k, v in line.items() if k not in without} for line in lines(left, scope)] == [
            {k: v for k, v in line.items() if k not in without} for line in lines(right, scope)
        ]
    assert [{k: v for k, v in summary(folder).items() if k not in without} for folder in (left, right)] == [
        {k: v for k, v in summary(right).items() if k not in without}
    ] * 2
    assert rows_of_clients(left) == rows_of_clients(right)
    worlds = [folder / "world.json" for folder in (left, right)]
    assert worlds[0].exists() == worlds[1].exists()
    assert not worlds[0].exists() or worlds[0].read_text() == worlds[1].read_text()
    return True


@pytest.mark.parametrize("name", CASES)
def test_cloud_and_edges_give_the_bits_of_one_run(tmp_path, short_path, name):
    settings = SMALL | CASES[name]
    half = settings["num_clients"] // 2
    clients_of = {"edge-0": list(range(half)), "edge-1": list(range(half, 2 * half))}
    server = run_app(tmp_path / "server", **settings)
    with edge_hosts(short_path, clients_of, **settings) as hosts:
        cloud = run_cloud(tmp_path / "cloud", hosts, devices=1, **settings)
    assert same_weights(cloud, server)
    assert same_figures(cloud, server, bytes_too=True)
    assert same_heads(cloud, server)
    if "validation_share" in settings:
        assert (cloud / "best-model.pt").read_bytes() == (server / "best-model.pt").read_bytes()
    joules = [sum(sum(plan["upload_joules"]) for line in edge for plan in line["plans"]) for edge in plans_of(hosts)]
    if joules:
        assert sum(joules) == pytest.approx(summary(cloud)["energy_joules"]["upload"], rel=1e-12)
    states = [load_state(folder / "state.npz")["strategies"]["edges"]["edge-0"] for folder in (cloud, server)]
    if name == "h-fedavg":
        assert states[0]["edge"]["m_t"].keys() == states[1]["m_t"].keys() != set()


@pytest.mark.parametrize("algorithm", ["phsfl", "sfl-v2"])
def test_edges_whose_clients_stream_give_the_same_bits(tmp_path, short_path, algorithm):
    # Clients of this process run one after the other: one at each edge, as those of sfl-v2 need theirs at once.
    settings = SMALL | {"algorithm": algorithm, "fine_tune_steps": 2, "num_edges": 4}
    clients_of = {f"edge-{client}": [client] for client in range(4)}
    server = run_app(tmp_path / "server", **settings)
    with edge_hosts(short_path, clients_of, split_transport="stream", **settings) as hosts:
        cloud = run_cloud(tmp_path / "cloud", hosts, **settings)
    assert same_weights(cloud, server)
    assert same_figures(cloud, server)
    assert same_heads(cloud, server)


def test_plans_from_measurements_come_back_too(tmp_path, short_path):
    node = {"max-frequency-hz": 1.5e9, "link-bits-per-second": 20e6, "energy-budget-joules": 50.0}
    settings = (
        SMALL | CASES["rawhfl"] | {"plan_resources": "measured", "global_rounds": 1, "plan_deadline_seconds": 1e6}
    )
    clients_of = {"west": [0, 2, 4], "east": [1, 3, 5]}
    with edge_hosts(short_path, clients_of, node_settings=node, **settings) as hosts:
        cloud = run_cloud(tmp_path / "cloud", hosts, **settings)
    plans = {line["edge"]: line["plans"] for line in lines(cloud, "edge")}
    assert plans == {line["edge"]: line["plans"] for (line,) in plans_of(hosts)}
    assert [len(one["selected"]) for own in plans.values() for one in own] == [2] * 4
    spent = [line["energy_joules"]["so_far"] for (line,) in plans_of(hosts)]
    assert summary(cloud)["energy_joules"]["total"] == pytest.approx(sum(spent), rel=1e-12) != 0
    world = json.loads((cloud / "world.json").read_text())
    assert [(client["client"], client["edge"]) for client in world["clients"]] == [
        (i, "east" if i % 2 else "west") for i in range(6)
    ]
    own = [json.loads((host.results / "world.json").read_text())["clients"] for host in hosts]
    measured = {client["client"]: client["cycles_per_example"] for clients in own for client in clients}
    assert {client["client"]: client["cycles_per_example"] for client in world["clients"]} == measured


def same_heads(left, right):
    files = [folder / "heads.pt" for folder in (left, right)]
    if not files[0].exists() and not files[1].exists():
        return True
    a, b = (torch.load(file, weights_only=True) for file in files)
    return a.keys() == b.keys() and all(torch.equal(a[c][name], b[c][name]) for c in a for name in a[c])


def plans_of(hosts):
    """Return the lines with plans of each edge's own results folder."""
    folders = [host.results for host in hosts]
    planned = [[line for line in lines(folder, "edge") if "plans" in line] for folder in folders]
    return [edge for edge in planned if edge]


def test_an_edges_own_folder_has_its_lines(tmp_path, short_path):
    settings = SMALL
    server = run_app(tmp_path / "server", **settings)
    with edge_hosts(short_path, TWO, **settings) as hosts:
        run_cloud(tmp_path / "cloud", hosts, **settings)
    for host in hosts:
        own = lines(host.results, "edge")
        same = [line for line in lines(server, "edge") if line["edge"] == host.name]
        assert [line["participants"] for line in own] == [line["participants"] for line in same]
        sent = [line["bytes"]["edge"]["uplink"]["model"] for line in own]
        assert sent == [line["bytes"]["edge"]["uplink"]["model"] for line in same]
        assert [line["round"] for line in lines(host.results, "evaluation")] == [1, 2]


@pytest.mark.parametrize("name", ["h-fedavg", "rawhfl", "sfl-v2"])
def test_an_edge_killed_and_started_again_between_rounds_gives_the_same_bits(tmp_path, short_path, name):
    settings = SMALL | CASES[name]
    half = settings["num_clients"] // 2
    clients_of = {"edge-0": list(range(half)), "edge-1": list(range(half, 2 * half))}
    server = run_app(tmp_path / "server", **settings)
    with edge_hosts(short_path, clients_of, **settings) as hosts:

        def start_again(number):
            if number == 1:
                for host in hosts:
                    host.stop()
                    host.start()

        cloud = run_cloud(tmp_path / "cloud", hosts, after_round=start_again, **settings)
    assert same_weights(cloud, server)
    assert same_figures(cloud, server)
    if name == "rawhfl":  # what was spent before is in the state, too
        spent = [lines(host.results, "edge")[-1]["energy_joules"]["so_far"] for host in hosts]
        assert sum(spent) == pytest.approx(lines(server, "global")[-1]["energy_joules"]["so_far"], rel=1e-12)


KEEP = {
    "scaffold": {"algorithm": "scaffold"},
    "feddyn": {"algorithm": "feddyn"},
    "fedper": {"algorithm": "fedper"},
    "ditto": {"algorithm": "ditto"},
    "errors": {"compress_client": "top-k(share=0.1)"},
}


@pytest.mark.parametrize("case", [CASES["h-fedavg"], *KEEP.values()], ids=["h-fedavg", *KEEP])
def test_an_edge_serves_one_run_of_the_cloud_after_the_other(case, tmp_path, short_path):
    settings = SMALL | case
    with edge_hosts(short_path, TWO, **settings) as hosts:
        first, second = (run_cloud(tmp_path / name, hosts, **settings) for name in ("first", "second"))
    assert same_weights(first, second)
    assert same_figures(first, second)


@pytest.mark.parametrize("case", KEEP.values(), ids=KEEP)
def test_clients_of_a_run_that_goes_on_keep_what_they_had_and_those_of_another_do_not(case, tmp_path, short_path):
    settings = SMALL | case
    with edge_hosts(short_path, TWO, **settings) as hosts:
        straight = run_cloud(tmp_path / "straight", hosts, **settings)
        one = run_cloud(tmp_path / "one", hosts, **settings | {"global_rounds": 1})
        whole = run_cloud(one, hosts, **settings, resume=str(one))
    assert same_weights(whole, straight)


def test_an_edge_that_is_gone_for_a_round_is_left_out_of_it_alone(tmp_path, short_path, caplog):
    caplog.set_level("INFO", "espalier")
    settings = SMALL | CASES["h-fedavg"] | {"global_rounds": 3}
    with edge_hosts(short_path, TWO, **settings) as hosts:
        gone = hosts[1]
        cloud = run_cloud(
            tmp_path / "cloud",
            hosts,
            after_round=lambda number: {1: gone.stop, 2: gone.start, 3: lambda: None}[number](),
            **settings,
        )
    texts = [record.getMessage() for record in caplog.records]
    # In one run with both tiers: the edge's clients are gone.
    config = config_of(**settings, engine="in-process", output_dir=str(tmp_path / "server"))
    engine = engine_of(config)
    grid = engine.grid
    ids = [node_id for node_id, node in grid._nodes.items() if node.partition_id in TWO["edge-1"]]
    actions = {1: grid.disconnect, 2: grid.connect, 3: lambda node_id: None}
    server = run(config, engine, Watching(lambda number: [actions[number](n) for n in ids]), tmp_path)
    assert same_weights(cloud, server)
    assert [line["edges_left_out"] for line in lines(cloud, "global")] == [[], ["edge-1"], []]
    (edge_0, edge_1) = (line for line in lines(cloud, "edge") if line["round"] == 2)
    assert edge_0["trained"]
    assert not edge_1["trained"]
    first, evaluation = edge_1["failures"]
    assert (first["edge_round"], first["client"], evaluation["evaluation"]) == (1, None, True)
    assert "is not there" in first["reason"]
    assert str(gone.config.deploy.edge_folder) in first["reason"]
    assert sum(text.startswith("round 2, edge round 1: edge-1 left out: NoEdgeError") for text in texts) == 1
    assert texts.count("edge 'edge-1' is back") == 1
    assert summary(cloud)["failures"] == 2


def test_an_edge_started_again_with_other_settings_is_left_out_until_it_has_the_same(tmp_path, short_path):
    settings = SMALL | {"global_rounds": 3}
    with edge_hosts(short_path, TWO, **settings) as hosts:
        other = hosts[1]

        def again(number):
            other.stop()
            other.settings["learning_rate"] = {1: 0.5, 2: 0.1, 3: 0.1}[number]
            other.start()

        cloud = run_cloud(tmp_path / "cloud", hosts, after_round=again, **settings)
    assert [line["edges_left_out"] for line in lines(cloud, "global")] == [[], ["edge-1"], []]
    (failure, _) = next(line for line in lines(cloud, "edge") if line["edge"] == "edge-1" and line["failures"])[
        "failures"
    ]
    assert failure["reason"] == (
        "learning-rate = 0.1, but 0.5 at edge 'edge-1': allowed is the same at both: "
        "start one of the two runs again with the other's value"
    )


@pytest.mark.parametrize("name", ["h-fedavg", "rawhfl"])
def test_an_interrupted_cloud_goes_on_from_its_last_round_while_the_edges_run(tmp_path, short_path, name):
    settings = SMALL | CASES[name] | {"global_rounds": 3}
    half = settings["num_clients"] // 2
    clients_of = {"edge-0": list(range(half)), "edge-1": list(range(half, 2 * half))}
    server = run_app(tmp_path / "server", **settings)

    def interrupt(number):
        if number == 2:
            raise KeyboardInterrupt

    with edge_hosts(short_path, clients_of, **settings) as hosts:
        with pytest.raises(KeyboardInterrupt):
            run_cloud(tmp_path / "cloud", hosts, after_round=interrupt, **settings)
        cloud = run_cloud(tmp_path / "cloud", hosts, output_dir="", resume=str(tmp_path / "cloud"), **settings)
    assert [line["round"] for line in lines(cloud, "global")] == [1, 2, 3]
    assert same_weights(cloud, server)
    assert same_figures(cloud, server, bytes_too=True)


def killed_in_round_2(folder, hosts, settings, monkeypatch):
    """Return the folder of a cloud's run that goes on after it was killed: one of the edges' answers is lost."""
    arrived = []

    def killed(reply):
        arrived.append(reply.metadata.message_type)
        if arrived.count(TRAIN_EDGE) == 4:  # both edges have trained
            arrived.append(TRAIN_EDGE)
            raise KeyboardInterrupt
        return reply_of(reply)

    monkeypatch.setattr(remote_edge, "reply_of", killed)
    with pytest.raises(KeyboardInterrupt):
        run_cloud(folder, hosts, **settings)
    return run_cloud(folder, hosts, output_dir="", resume=str(folder), **settings)


@pytest.mark.parametrize(
    "settings",
    [{"algorithm": "phsfl", "label_policy": "indices"}, {"algorithm": "scaffold", "secure.aggregation": True}],
    ids=lambda settings: settings["algorithm"],
)
def test_clients_that_begin_anew_keep_what_is_of_no_run(tmp_path, short_path, monkeypatch, settings):
    """A device keeps nothing of a message that it fails on: it would forget labels, or keys, for ever."""
    settings = SMALL | {"num_clients": 6} | settings
    with edge_hosts(short_path, {"edge-0": [0, 1, 2], "edge-1": [3, 4, 5]}, **settings) as hosts:
        cloud = killed_in_round_2(tmp_path / "cloud", hosts, settings, monkeypatch)
    assert summary(cloud)["failures"] == 0
    assert len(lines(cloud, "global")) == 2


def test_a_cloud_killed_in_a_round_goes_on_with_clients_that_begin_anew_with_their_edges(
    tmp_path, short_path, monkeypatch
):
    settings = SMALL | KEEP["scaffold"]
    with edge_hosts(short_path, TWO, **settings) as hosts:
        cloud = killed_in_round_2(tmp_path / "cloud", hosts, settings, monkeypatch)
        edges = load_state(cloud / "state.npz")["strategies"]["edges"]
        for host in hosts:
            c = to_weights(edges[host.name]["edge"]["half"]["control"])
            clients = [client["kept"] for client in kept_of(host.engine.grid.state_dict())]
            for name, control in c.items():
                mean = sum(c_i[name] for c_i in clients) / len(clients)
                torch.testing.assert_close(control, mean, rtol=0, atol=1e-7)
    assert [line["round"] for line in lines(cloud, "global")] == [1, 2]


def test_edges_go_by_any_name_and_clients_need_not_be_blocks(tmp_path, short_path):
    settings = SMALL | {"global_rounds": 1, "participation": 0.5}
    clients_of = {"west": [1, 3], "east": [0, 2]}
    config = config_of(**settings, engine="in-process", output_dir=str(tmp_path / "server"))
    edge_of = {client: name for name, clients in clients_of.items() for client in clients}
    engine = engine_of(config, [{"edge-name": edge_of[client]} for client in range(4)])
    server = run(config, engine, Watching(lambda number: None), tmp_path)
    with edge_hosts(short_path, clients_of, **settings) as hosts:
        cloud = run_cloud(tmp_path / "cloud", hosts, **settings)
    assert same_weights(cloud, server)
    assert [line["edge"] for line in lines(cloud, "edge")] == ["east", "west"]
    assert same_figures(cloud, server)


@pytest.mark.usefixtures("with_blank_pictures")
def test_the_clouds_folder_has_plots(tmp_path, short_path, with_plots):
    settings = SMALL | CASES["phsfl"] | {"global_rounds": 1}
    with edge_hosts(short_path, TWO, **settings) as hosts:
        cloud = run_cloud(tmp_path / "cloud", hosts, **settings)
    assert {"rounds.png", "personalised.png", "bytes.png"} <= {file.name for file in cloud.iterdir()}
