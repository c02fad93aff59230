"""Runs whose cloud waits for nobody, over edge hosts and over clients whose answers take real time."""

import pytest

from espalier.app.config.unused import unused_keys
from espalier.app.run.run import run
from tests.app.assembling import config_of, engine_of
from tests.app.runs import lines, run_app, same_weights, summary
from tests.app.tiers.hosts import SMALL, Watching, cloud_engine, edge_hosts, run_cloud

TWO = {"edge-0": [0, 1], "edge-1": [2, 3]}
BUFFERED = {"async_mode": "fedbuff", "async_buffer_size": 1}


def hold(grid, partition):
    """Hold the replies of a node back to what it is asked to train while `held` is not empty, which is returned."""
    held, of, types = ["held"], {}, {}
    push, pull = grid.push_messages, grid.pull_messages

    def push_messages(messages):
        messages = list(messages)
        ids = list(push(messages))
        for message_id, message in zip(ids, messages, strict=True):
            of[message_id] = grid._nodes[message.metadata.dst_node_id].partition_id
            types[message_id] = message.metadata.message_type
        return ids

    def pull_messages(message_ids):
        stays = {i for i in message_ids if held and of[i] == partition and types[i].startswith("train")}
        return pull([i for i in message_ids if i not in stays])

    grid.push_messages, grid.pull_messages = push_messages, pull_messages
    return held


@pytest.mark.parametrize("algorithm", ["h-fedavg", "phsfl"])
def test_edges_that_answer_at_once_and_a_buffer_for_all_are_the_synchronous_run(tmp_path, short_path, algorithm):
    settings = SMALL | {"algorithm": algorithm, "fine_tune_steps": 2}
    everybody = {"async_mode": "fedbuff", "async_buffer_size": 2}
    plain = run_app(tmp_path / "plain", **settings)
    with edge_hosts(short_path, TWO, **settings) as hosts:  # which need not know
        cloud = run_cloud(tmp_path / "cloud", hosts, **settings | everybody)
    assert same_weights(cloud, plain)
    assert [line["bytes"]["cloud"]["uplink"]["model"] for line in lines(cloud, "global")] == [
        line["bytes"]["cloud"]["uplink"]["model"] for line in lines(plain, "global")
    ]
    first, last = lines(cloud, "global")
    assert "test" in first
    assert "clients" not in first
    assert last["clients"] == lines(plain, "global")[-1]["clients"]
    for line in (first, last):
        arrivals = line["async"]["arrivals"]
        assert [(one["who"], one["staleness"]) for one in arrivals] == [("edge-0", 0), ("edge-1", 0)]
        assert 0 < arrivals[0]["seconds"] <= arrivals[1]["seconds"] <= line["wall_seconds"]
        assert "simulated_seconds" not in line
    assert "simulated_seconds" not in summary(cloud)
    assert summary(cloud)["async"]["staleness"] == {"0": 4}


@pytest.mark.usefixtures("with_blank_pictures")
def test_an_edge_that_is_late_joins_the_next_aggregation_with_its_staleness(tmp_path, short_path, with_plots):
    settings = SMALL | {"global_rounds": 6}
    with edge_hosts(short_path, TWO, **settings | BUFFERED) as hosts:
        config = config_of(**settings, **BUFFERED, role="cloud", output_dir=str(tmp_path / "cloud"))
        engine = cloud_engine(hosts, config)
        held = hold(engine.grid, 1)
        cloud = run(config, engine, Watching(lambda number: held.clear() if number == 4 else None), tmp_path)
    who = [[(one["who"], one["staleness"]) for one in line["async"]["arrivals"]] for line in lines(cloud, "global")]
    assert who[:4] == [[("edge-0", 0)]] * 4
    assert who[4] == [("edge-1", 4)]
    assert [line["edge"] for line in lines(cloud, "edge")][4] == "edge-1"
    assert lines(cloud, "edge")[4]["trained"]
    assert summary(cloud)["failures"] == 0
    assert (cloud / "async.png").exists()


def test_an_interrupted_cloud_asks_anew_for_what_was_in_flight(tmp_path, short_path):
    settings = SMALL | {"global_rounds": 5}

    def interrupt(number):
        if number == 3:
            raise KeyboardInterrupt

    with edge_hosts(short_path, TWO, **settings) as hosts:
        config = config_of(**settings, **BUFFERED, role="cloud", output_dir=str(tmp_path / "cloud"))
        engine = cloud_engine(hosts, config)
        hold(engine.grid, 1)
        with pytest.raises(KeyboardInterrupt):
            run(config, engine, Watching(interrupt), tmp_path)
        resume = {"output_dir": "", "resume": str(tmp_path / "cloud")}
        cloud = run_cloud(tmp_path / "cloud", hosts, **settings | BUFFERED | resume)
    rounds = lines(cloud, "global")
    assert [line["round"] for line in rounds] == [1, 2, 3, 4, 5]
    arrivals = [one for line in rounds for one in line["async"]["arrivals"]]
    assert [one["who"] for one in arrivals][:3] == ["edge-0"] * 3
    assert {one["who"] for one in arrivals[3:]} == {"edge-0", "edge-1"}
    assert next(one["staleness"] for one in arrivals if one["who"] == "edge-1") in (0, 1)
    assert [one["seconds"] for one in arrivals] == sorted(one["seconds"] for one in arrivals)


def test_an_edge_that_is_gone_is_a_failure_of_its_rounds_and_asked_again(tmp_path, short_path, caplog):
    caplog.set_level("INFO", "espalier")
    settings = SMALL | {"global_rounds": 8, "async_mode": "semi-synchronous"}
    with edge_hosts(short_path, TWO, **settings) as hosts:
        actions = {2: hosts[1].stop, 4: hosts[1].start}
        cloud = run_cloud(tmp_path / "cloud", hosts, lambda number: actions.get(number, lambda: None)(), **settings)
    assert [line["edges_left_out"] for line in lines(cloud, "global")] == [[], [], *[["edge-1"]] * 2, *[[]] * 4]
    assert [line["failures"] for line in lines(cloud, "global")] == [0, 0, 1, 1, 0, 0, 0, 0]
    left_out = [one for line in lines(cloud, "global") for one in line["async"]["arrivals"] if "left_out" in one]
    assert [one["who"] for one in left_out] == ["edge-1"] * 2
    assert "edge-1 left out: NoEdgeError" in caplog.text
    assert "edge 'edge-1' is back" in caplog.text


def test_clients_that_answer_at_once_are_the_synchronous_run(tmp_path):
    settings = {k: v for k, v in SMALL.items() if k not in ("num_edges", "edge_rounds")} | {"algorithm": "fedavg"}
    plain = run_app(tmp_path / "plain", **settings)
    own = settings | {"async_mode": "fedbuff", "async_buffer_size": 4, "async_clock": "wall"}
    config = config_of(**own, output_dir=str(tmp_path / "own"))
    folder = run(config, engine_of(config), Watching(lambda number: None), tmp_path)
    assert same_weights(folder, plain)
    arrivals = [line["async"]["arrivals"] for line in lines(folder, "global")]
    assert [[one["who"] for one in own] for own in arrivals] == [[f"client {i}" for i in range(4)]] * 2


def test_edges_whose_clients_answer_at_once_are_the_synchronous_run(tmp_path):
    settings = SMALL | {"algorithm": "h-fedavg"}
    plain = run_app(tmp_path / "plain", **settings)
    own = settings | {"async_mode": "fedbuff", "async_tier": "edges", "async_buffer_size": 2, "async_clock": "wall"}
    config = config_of(**own, output_dir=str(tmp_path / "own"))
    folder = run(config, engine_of(config), Watching(lambda number: None), tmp_path)
    assert same_weights(folder, plain)
    everybody = sorted((edge, f"client {2 * i + j}") for i, edge in enumerate(("edge-0", "edge-1")) for j in range(2))
    for line in lines(folder, "global"):
        assert "simulated_seconds" not in line
        came = sorted((one["edge"], one["who"]) for one in line["async"]["arrivals"])
        assert came == sorted(everybody * settings["edge_rounds"])


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"async_clock": "wall", "engine": "in-process"}, "async.clock = 'wall': allowed is 'auto' or 'simulated'"),
        ({"async_clock": "simulated", "role": "cloud"}, "async.clock = 'simulated': allowed is 'auto' or 'wall'"),
        ({"algorithm": "rawhfl", "role": "cloud"}, "async.mode = 'fedbuff': allowed is 'off' for plans"),
    ],
)
def test_clocks_that_do_not_fit_are_said_in_a_line(settings, line):
    with pytest.raises(Exception, match="allowed is") as raised:
        config_of(**BUFFERED, **settings)
    assert line in str(raised.value)


def test_settings_of_simulated_time_have_no_effect():
    unused = unused_keys(config_of(**BUFFERED, async_sigma=2.0, role="cloud"))
    assert unused["async.sigma"] == "the clock on the wall shows how long it takes"
