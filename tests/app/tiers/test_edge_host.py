"""The run of an edge, asked directly."""

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord

from espalier.app.ground.checkpoint import from_bytes, to_bytes
from espalier.app.ground.errors import UserError
from espalier.app.meters.bytes import ByteMeter
from espalier.app.meters.seconds import SecondsMeter
from espalier.app.reports.folder import ResultsFolder
from espalier.app.tiers import own_hosts
from espalier.app.tiers.edge_host import EdgeRun
from espalier.app.tiers.states import OwnState
from espalier.app.wiring.one_server import checked_task
from espalier.app.wiring.planning import planned_world
from espalier.app.wiring.task_of_run import build_task
from espalier.clients.messages.edge import EVALUATE_EDGE, QUERY_EDGE, TRAIN_EDGE
from espalier.clients.shared.compression import Float16
from espalier.strategies import Profile, ask_profiles
from espalier.strategies.profiles import clients_by_node
from tests.app.assembling import config_of
from tests.app.tiers.hosts import SMALL, EdgeHost, edge_hosts
from tests.strategies.asynchronous.test_wall_clock import Delayed
from tests.strategies.test_deadline import federation
from tests.strategies.toys import initial, to_record

PLANNED = SMALL | {
    "algorithm": "rawhfl",
    "dataset": "video-caching",
    "num_clients": 6,
    "num_edges": 3,
    "selected_per_edge": 1,
}


def edge_run(short_path, clients=(0, 1), **settings):
    host = EdgeHost(short_path, "edge-0", list(clients), **SMALL | settings)
    host.start()
    host.stop()
    return own_hosts.edge_run(host.config, host.engine.grid, *checked_task(host.config))


def test_a_request_that_fails_is_answered_and_the_next_one_is_served(short_path, caplog):
    edge = edge_run(short_path)
    state = from_bytes(edge.answer(QUERY_EDGE, to_bytes({})))["state"]
    bad = {"round": 1, "arrays": ArrayRecord({"w": Array(np.zeros(3))}), "config": ConfigRecord(), "state": {}}
    for message_type, request in (
        (TRAIN_EDGE, b"\x80\x04\x95 a pickle"),
        (TRAIN_EDGE, to_bytes({})),
        (TRAIN_EDGE, to_bytes(bad)),
        ("query.profile", to_bytes({})),
    ):
        answer = from_bytes(edge.answer(message_type, request))
        assert list(answer) == ["error"]
        assert "\n" not in answer["error"]
    assert sum(record.levelname == "WARNING" for record in caplog.records) == 4
    # Clients that can't use a model are failures, not an error.
    outcome = from_bytes(edge.answer(TRAIN_EDGE, to_bytes(bad | {"state": state})))
    assert outcome["sent"] is None
    assert [len(one["failures"]) for one in outcome["rounds"]] == [2, 2]
    evaluation = from_bytes(edge.answer(EVALUATE_EDGE, to_bytes(bad | {"state": state})))
    assert [client for client, _ in evaluation["failures"]] == [0, 1]


def test_devices_of_another_edge_are_named(short_path, caplog):
    host = EdgeHost(short_path, "west", [0, 1], node_settings={"edge-name": "east"}, **SMALL)
    with pytest.raises(UserError, match=r"deploy\.edge-clients = "):
        host.start()
    assert "is left out: its edge-name is 'east': allowed is 'west', the edge of this run" in caplog.text
    assert not host.socket.exists()


@pytest.mark.parametrize(
    ("number", "match"),
    [
        (3, "deploy.edge-clients = 3: only 2 of 3 SuperNodes are connected: start the others"),
        (1, "deploy.edge-clients = 1: allowed is 2, the number of connected clients"),
        (9, "deploy.edge-clients = 9: allowed is at most num-clients = 4"),
    ],
)
def test_the_number_of_devices_must_be_right(short_path, number, match):
    host = EdgeHost(short_path, "west", [0, 1], **SMALL | {"edge_clients": number})
    with pytest.raises(UserError, match=match):
        host.start()


def test_two_devices_that_are_the_same_client_are_named(short_path, caplog):
    host = EdgeHost(short_path, "west", [1, 1], **SMALL)
    with pytest.raises(UserError, match=r"deploy\.edge-clients = 2"):
        host.start()
    assert "is left out: its partition-id, 1, is that of node" in caplog.text


def test_a_second_run_for_the_same_folder_is_refused_and_the_first_goes_on(short_path):
    with edge_hosts(short_path, {"west": [0, 1]}, **SMALL) as (first,):
        second = EdgeHost(short_path, "west", [0, 1], **SMALL | {"seed": 1})
        next(second._starts)
        with pytest.raises(UserError, match=r"allowed is a folder that nobody else writes to: process \d+ on "):
            second.start()
        assert first._thread.is_alive()
        assert first.socket.exists()


def profiles_of(clients):
    return [Profile(100 + client, client, "", 50, 10, (1,)) for client in clients]


def test_an_edge_with_plans_must_have_a_whole_cell():
    def world(name, clients):
        config = config_of(role="edge", edge_name=name, edge_folder="/x", edge_clients=len(clients), **PLANNED)
        task, profiles = build_task(config), profiles_of(clients)
        topology = {name: [profile.node_id for profile in profiles]}
        return planned_world(config, topology, profiles, task, task.new_model())

    assert list(world("west", [2, 3]).edges) == ["edge-0", "west", "edge-2"]
    assert list(world("edge-2", [4, 5]).edges) == ["edge-0", "edge-1", "edge-2"]
    with pytest.raises(UserError, match="edge 'west' has clients 1, 2: allowed are whole radio cells, 0 to 1, 2 to 3"):
        world("west", [1, 2])
    with pytest.raises(UserError, match=r"deploy\.edge-name = 'edge-0': allowed is 'edge-1', or a name that is not"):
        world("edge-0", [2, 3])


def test_devices_that_leave_and_come_back_are_logged(short_path, caplog):
    caplog.set_level("INFO", "espalier")
    edge = edge_run(short_path)
    edge.look_who_is_connected()
    node_id = next(node_id for node_id, client in edge._client_of.items() if client == 1)
    for action in (edge._grid.disconnect, edge._grid.connect):
        action(node_id)
        edge.look_who_is_connected()
        edge.look_who_is_connected()
    texts = [record.getMessage() for record in caplog.records]
    assert texts.count("client 1 of edge-0 left") == texts.count("client 1 of edge-0 is back") == 1


def test_a_host_that_can_write_no_report_answers_all_the_same(short_path, caplog):
    edge, folder = edge_run(short_path), ResultsFolder(short_path)
    edge.report_to(folder)
    (short_path / "metrics.jsonl").mkdir()
    state = from_bytes(edge.answer(QUERY_EDGE, to_bytes({})))["state"]
    model = {name: tensor.numpy() for name, tensor in build_task(config_of()).new_model().state_dict().items()}
    for number in (1, 2):
        request = {"round": number, "arrays": to_record(model), "config": ConfigRecord(), "state": state}
        answer = from_bytes(edge.answer(TRAIN_EDGE, to_bytes(request)))
        assert [client for one in answer["rounds"] for client in one["participants"]] == [0, 1] * 2
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(warnings) == 1
    assert warnings[0].startswith(f"{folder.path}: can't be written, the edge goes on: ")
    (short_path / "metrics.jsonl").rmdir()
    for number in (3, 4):
        edge.answer(
            TRAIN_EDGE,
            to_bytes({"round": number, "arrays": to_record(model), "config": ConfigRecord(), "state": state}),
        )
    again = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"][1:]
    assert again == [f"{folder.path}: can be written again, and lacks what came meanwhile"]
    assert [line["round"] for line in folder.read_metrics()] == [3, 4]


class Broken(Float16):
    """A codec that writes nothing."""

    def encode(self, values, start, draws):
        raise ValueError("no room")


def test_a_model_that_can_not_be_written_is_a_failure_of_the_edge_and_all_else_is_told(short_path):
    edge, folder = edge_run(short_path, compress_edge=f"{__name__}:Broken"), ResultsFolder(short_path)
    edge.report_to(folder)
    state = from_bytes(edge.answer(QUERY_EDGE, to_bytes({})))["state"]
    start = to_record(build_task(config_of()).new_model().state_dict())
    request = {"round": 1, "arrays": start, "config": ConfigRecord(), "state": state}
    answer = from_bytes(edge.answer(TRAIN_EDGE, to_bytes(request)))
    assert answer["sent"] is None
    assert [one["trained"] for one in answer["rounds"]] == [False, False]
    assert [one["failures"] for one in answer["rounds"]] == [[], [(None, "its update can't be written: no room")]]
    assert sum(count for *_, count in answer["counted"]["sent"]) > 0
    assert "state" in answer
    (line,) = folder.read_metrics()
    assert line["trained"] is False


def test_a_host_whose_lock_was_removed_writes_no_report_and_answers(short_path, caplog):
    edge = edge_run(short_path)
    with ResultsFolder.create(short_path / "run", {}) as folder:
        edge.report_to(folder)
        (folder.path / "lock").unlink()
        state = from_bytes(edge.answer(QUERY_EDGE, to_bytes({})))["state"]
        model = {name: tensor.numpy() for name, tensor in build_task(config_of()).new_model().state_dict().items()}
        request = {"round": 1, "arrays": to_record(model), "config": ConfigRecord(), "state": state}
        assert "rounds" in from_bytes(edge.answer(TRAIN_EDGE, to_bytes(request)))
    (said,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert "is no longer this run's: its file lock was removed" in said
    assert not (folder.path / "metrics.jsonl").exists()


def edge_with_late_results():
    """Return an edge whose devices have a deadline of 5 seconds, what it learns of them, their ids, and their grid."""
    grid = Delayed(4)
    strategy, resources, nodes = federation(grid, 5.0)
    own = OwnState(strategy.edges["edge-0"], None)
    meter = ByteMeter({"edge": "edge"})
    profiles = ask_profiles(grid)
    parts = profiles, strategy, meter, SecondsMeter(clients_by_node(profiles)), None, own
    edge = EdgeRun("edge-0", {}, grid, *parts, timeout_seconds=None, figures=(), deadline=resources.deadline)
    return edge, resources, nodes, grid


def test_what_was_late_in_another_run_is_told_to_nobody():
    edge, resources, nodes, grid = edge_with_late_results()
    grid.delays = {nodes[1]: 12.0}
    for number in (1, 2):
        state = from_bytes(edge.answer(QUERY_EDGE, to_bytes({})))["state"]
        request = {"round": number, "arrays": to_record(initial()), "config": ConfigRecord(), "state": state}
        edge.answer(TRAIN_EDGE, to_bytes(request))
        grid.delays = {}
        for _ in range(50):
            edge.look_who_is_connected()
    assert resources.lates == [{nodes[1]}, set()]
    assert [number for number, node_id, _ in resources.took if node_id == nodes[1]] == [2]


@pytest.mark.parametrize("idle_after", [None, 1])
def test_a_late_result_tells_its_time_in_a_later_request(idle_after):
    edge, resources, nodes, grid = edge_with_late_results()
    state = from_bytes(edge.answer(QUERY_EDGE, to_bytes({})))["state"]
    grid.delays, sent = {nodes[1]: 12.0}, []
    for number in range(1, 13):
        request = {"round": number, "arrays": to_record(initial()), "config": ConfigRecord(), "state": state}
        answer = from_bytes(edge.answer(TRAIN_EDGE, to_bytes(request)))
        state, grid.delays = answer["state"], {}
        sent += answer["counted"]["sent"]
        if number == idle_after:
            for _ in range(50):
                edge.look_who_is_connected()
            assert resources.took[-1][:2] == (1, nodes[3])  # it is told with the state of the next request
        assert [client for client, _ in answer["rounds"][0]["failures"]] == ([1] if number == 1 else [])
    assert resources.lates == [{nodes[1]}, *[set()] * 11]
    times = {number: seconds for number, node_id, seconds in resources.took if node_id == nodes[1]}
    assert sorted(times) == list(range(1, 13))
    assert 12.0 <= times[1] <= 14.0
    models = {way: sum(n for each, kind, n in sent if (each, kind) == (way, "model")) for way in ("uplink", "downlink")}
    assert models["uplink"] == models["downlink"] > 0  # each reply counts once, whenever it came
