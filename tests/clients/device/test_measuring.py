"""What a device adds to its profile when it is asked to measure."""

import math
import random
from dataclasses import replace

import pytest
import torch
from certificates import make_certificates
from flwr.app import ConfigRecord, Context, Message, MetricRecord, RecordDict
from torch import nn

from espalier.clients.client_app import make_client_app
from espalier.clients.device.measuring import measure_cycles_per_example, measured_profile
from espalier.clients.messages.profile import MEASURE, PROFILE, QUERY_PROFILE, ProfileQuery
from espalier.clients.split.stream import LINK, LINK_BITS_PER_SECOND
from espalier.clients.task import ClientTask, Examples, LocalTraining
from espalier.sim.in_process_grid import InProcessGrid
from espalier.strategies.split.stream import StreamServer

PLAIN = {"partition-id", "num-train-examples", "num-test-examples", "class-counts"}
EXTRA = {
    "cpu-count",
    "min-frequency-hz",
    "max-frequency-hz",
    "memory-bytes",
    "cycles-per-example",
    "link-bits-per-second",
    "energy-budget-joules",
    "max-power-watts",
    "capacitance",
}


def task_of(examples=40, **training):
    model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 3))
    data = Examples(torch.randn(examples, 8), torch.randint(3, (examples,)))
    training = LocalTraining(batch_size=8, **training)
    return ClientTask(model, data, data, lambda x: x, training, 0, 0, (1, 2, 3), torch.device("cpu"))


def asked(node_config=None, content=None, state=None, task=None):
    """Return the profile that a node answers with."""
    task = task or task_of()

    def load(context):
        if state is not None:
            context.state[LINK] = MetricRecord({LINK_BITS_PER_SECOND: state})
        return task

    grid = InProcessGrid(make_client_app(load), 1, node_configs=[node_config or {}])
    content = RecordDict({"config": ConfigRecord({MEASURE: True})}) if content is None else content
    (reply,) = grid.send_and_receive([Message(content, grid.get_node_ids()[0], QUERY_PROFILE)])
    return reply.error.reason if reply.has_error() else dict(reply.content.config_records[PROFILE])


@pytest.mark.parametrize("content", [RecordDict(), RecordDict({"config": ConfigRecord({MEASURE: False})})])
def test_the_profile_is_as_before_unless_asked(content, monkeypatch):
    monkeypatch.setattr("espalier.clients.device.measuring.measure_cycles_per_example", None)
    assert asked(content=content, node_config={"link-bits-per-second": 5}).keys() == PLAIN


def test_what_is_not_said_has_defaults_or_is_unknown():
    profile = asked({"max-frequency-hz": 1.5e9})
    assert profile.keys() == PLAIN | EXTRA
    assert (profile["energy-budget-joules"], profile["max-power-watts"]) == (math.inf, 0.2)
    assert (profile["capacitance"], profile["link-bits-per-second"]) == (2e-28, 0)


def test_the_nodes_config_wins():
    own = {
        "max-frequency-hz": 1.5e9,
        "link-bits-per-second": 20_000_000,
        "energy-budget-joules": 3,
        "max-power-watts": 0.1,
        "capacitance": 1e-28,
    }
    profile = asked(own, state=7e6)
    assert {key: profile[key] for key in own} == own
    assert profile["min-frequency-hz"] == 1.5e9  # nobody sets it
    assert asked(own | {"min-frequency-hz": 6e8})["min-frequency-hz"] == 6e8


def test_the_link_is_known_from_earlier_transfers():
    assert asked(state=7e6)["link-bits-per-second"] == 7e6


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("certificates")
    make_certificates(folder, ["127.0.0.1"])
    key, certificate, authority = (folder / name for name in ("server.key", "server.crt", "ca.crt"))
    chain = certificate.read_bytes() + authority.read_bytes()
    with StreamServer(key.read_bytes(), chain, address="127.0.0.1", max_frame_bytes=1024, max_streams=2) as server:
        yield server


def with_ticket(ticket):
    return ProfileQuery(measure=True, ticket=ticket).to_content()


def test_a_ticket_lets_the_link_be_measured(server):
    rate = asked(content=with_ticket(server.expect_probe().told))["link-bits-per-second"]
    assert 1e6 < rate < 1e12


def test_what_is_known_of_the_link_needs_no_probe(server):
    ticket = server.expect_probe().told
    assert asked({"link-bits-per-second": 5}, with_ticket(ticket), 7e6)["link-bits-per-second"] == 5
    assert asked({}, with_ticket(ticket), 7e6)["link-bits-per-second"] == 7e6
    assert asked({}, with_ticket(ticket))["link-bits-per-second"] > 1e6  # the ticket was still good


def test_a_link_that_can_not_be_measured_is_unknown(server, caplog):
    wrong = replace(server.expect_probe().told, token="guessed")
    assert asked(content=with_ticket(wrong))["link-bits-per-second"] == 0
    assert "the link can't be measured: stream to 127.0.0.1" in caplog.text
    assert "UNAUTHENTICATED" in caplog.text


@pytest.mark.parametrize("value", [0, -1.0, "fast", True, math.nan])
@pytest.mark.parametrize("key", ["max-power-watts", "min-frequency-hz", "link-bits-per-second"])
def test_a_bad_value_in_the_nodes_config_is_named(key, value):
    error = asked({key: value})
    assert f"{key} = {value!r} in the node's config: allowed is a number above 0" in error


def test_frequencies_come_from_the_system(tmp_path):
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/cpuinfo").write_text("cpu MHz : 1000\n")
    query = ProfileQuery(measure=True)
    context = Context(1, 1, {}, RecordDict(), {})
    profile = measured_profile(query, context, task_of(), tmp_path)
    assert (profile.min_frequency_hz, profile.max_frequency_hz) == (1e9, 1e9)
    assert profile.cycles_per_example > 0
    unknown = measured_profile(query, context, task_of(), tmp_path / "nothing")
    assert unknown.max_frequency_hz == unknown.cycles_per_example == 0


# Training speed.


@pytest.mark.parametrize("training", [{}, {"optimizer": "adam"}, {"momentum": 0.9}])
def test_measuring_touches_nothing_that_results_depend_on(training):
    task = task_of(**training)
    before = {name: value.clone() for name, value in task.model.state_dict().items()}
    states = torch.get_rng_state(), random.getstate()
    task.model.eval()
    assert measure_cycles_per_example(task, 1e9) > 0
    assert all(torch.equal(before[name], value) for name, value in task.model.state_dict().items())
    assert not task.model.training
    assert all(parameter.grad is None for parameter in task.model.parameters())
    assert torch.equal(states[0], torch.get_rng_state())
    assert states[1] == random.getstate()


class Machine:
    """A machine that takes its time for each mini-batch, and for each call besides."""

    def __init__(self, monkeypatch, batch_seconds, call_seconds):
        self.now, self.batches, self.seconds = 0.0, [], (batch_seconds, list(call_seconds))
        monkeypatch.setattr("espalier.clients.device.measuring.local_sgd", self.train)
        monkeypatch.setattr("espalier.clients.device.measuring.time.perf_counter", lambda: self.now)

    def train(self, task, server_round, training):
        self.batches.append(training.batches_per_epoch)
        self.now += self.seconds[0] * training.batches_per_epoch + self.seconds[1].pop(0)


def test_cycles_are_those_of_the_fastest_try_after_the_first_batch(monkeypatch):
    machine = Machine(monkeypatch, 0.01, [0.1, 0.3, 0.0, 0.2])
    assert measure_cycles_per_example(task_of(), 1.5e9) == pytest.approx(0.01 / 8 * 1.5e9)
    assert machine.batches == [1, 16, 16, 16]


def test_small_sets_have_small_batches(monkeypatch):
    Machine(monkeypatch, 0.01, [0.0] * 4)
    assert measure_cycles_per_example(task_of(examples=5), 1.5e9) == pytest.approx(0.01 / 5 * 1.5e9)


def test_a_slow_machine_is_not_kept_for_long(monkeypatch):
    machine = Machine(monkeypatch, 2.0, [0.0] * 4)
    assert measure_cycles_per_example(task_of(), 1e9) == pytest.approx(2.0 / 8 * 1e9)
    assert machine.batches == [1, 2, 2]
    machine = Machine(monkeypatch, 100.0, [0.0] * 4)
    assert measure_cycles_per_example(task_of(), 1e9) == pytest.approx(100.0 / 8 * 1e9)
    assert machine.batches == [1, 1]


def test_there_is_no_speed_without_examples_or_a_frequency():
    assert measure_cycles_per_example(task_of(examples=0), 1e9) == 0
    assert measure_cycles_per_example(task_of(), 0.0) == 0


def test_a_larger_model_takes_more_cycles():
    small, large = task_of(), task_of()
    wide = nn.Sequential(nn.Linear(8, 2048), nn.ReLU(), nn.Linear(2048, 2048), nn.ReLU(), nn.Linear(2048, 3))
    large.model.__init__(*wide)
    cycles = [measure_cycles_per_example(task, 1e9) for task in (small, large)]
    assert 0 < cycles[0] < cycles[1] < 1e9
