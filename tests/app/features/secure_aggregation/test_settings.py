"""What secure aggregation is refused with, in one line, and what its settings have no use for."""

import pytest

from espalier.app.client import app as client_app
from espalier.app.config.parse import parse_config
from espalier.app.config.together import check_strategies
from espalier.app.ground.errors import UserError
from espalier.clients.messages.labels import LabelsQuery
from espalier.clients.messages.profile import ProfileQuery
from espalier.sim.in_process_grid import InProcessGrid

ON = {"secure.aggregation": True, "num-clients": 8}


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"edge-strategy": "Krum"}, "all others see single updates"),
        ({"edge-strategy": "FedMedian"}, "'FedAvg', 'FedProx', 'FedAvgM', 'FedAdam', 'FedAdagrad', 'FedYogi'"),
        ({"edge-strategy": "QFedAvg(client_learning_rate=0.1)"}, "all others see single updates"),
        ({"algorithm": "fedavg", "cloud-strategy": "MultiKrum"}, "cloud-strategy"),
        ({"guard.update-norm": 10.0}, "guard.update-norm = 10, which compares single updates"),
        ({"compress.client": "int8"}, "compress.client = 'int8', which edges decode"),
        ({"privacy.level": "client-at-edge", "train.weighting": "equal", "privacy.noise": 1.0}, "clip single updates"),
        ({"algorithm": "feddyn"}, "whose edges make more of updates than their average"),
        ({"algorithm": "fednova"}, "whose edges make more of updates than their average"),
        ({"algorithm": "local"}, "whose edges make more of updates than their average"),
        ({"algorithm": "sl"}, "train one after the other"),
        ({"algorithm": "sfl-v2", "split.server-order": "one-by-one"}, "train one after the other"),
        ({"algorithm": "hsfl", "cut-layer": "1,2"}, "clients' blocks have no average"),
        ({"algorithm": "rawhfl"}, "send gradients"),
        ({"selection": "resource-aware"}, "with plans, which go by what single clients tell"),
        ({"async.mode": "fedbuff"}, "where no edge round is everybody's"),
        ({"num-edges": 4}, "num-clients = 8: allowed is 12 or more, for secure.fewest = 3 at each edge"),
        ({"participation": 0.5}, "num-clients = 8: allowed is 12 or more, for secure.fewest = 3 at each edge"),
        ({"secure.neighbours": 2, "secure.fewest": 4}, "secure.neighbours = 2: allowed is 0, or 3 or more"),
        ({"secure.neighbours": 3}, "secure.neighbours = 3"),
        ({"secure.threshold": 0.0}, "secure.threshold = 0.0"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_needs_more_than_an_average_is_refused(settings, reason):
    with pytest.raises(UserError) as refused:
        check_strategies(parse_config({**ON, **settings}))
    assert reason in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(("participation", "least"), [(1.0, 6), (0.5, 12), (0.34, 18)])
def test_as_few_clients_as_a_refusal_allows_are_allowed(participation, least):
    few = {**ON, "num-edges": 2, "participation": participation}
    with pytest.raises(UserError, match=f"allowed is {least} or more"):
        parse_config({**few, "num-clients": least - 1})
    parse_config({**few, "num-clients": least})


@pytest.mark.parametrize(
    "settings", [{"cloud-strategy": "FedMedian"}, {"algorithm": "hsfl", "guard.activation-norm": 5.0}], ids=str
)
def test_what_sees_averages_or_activations_alone_is_not(settings):
    check_strategies(parse_config({**ON, **settings}))


@pytest.mark.parametrize("settings", [{}, {"secure.aggregation": True}, {**ON, "secure.signed": True}], ids=str)
def test_a_client_with_keys_answers_in_signed_runs_alone(settings):
    """Settings come with the run, so whoever starts it could leave masks out."""
    keys = {"partition-id": 0, "secure-key": "own.pem", "secure-keys": "clients.txt"}
    grid = InProcessGrid(client_app, 8, run_config={"num-clients": 8, **settings}, node_configs=[keys] * 8)
    (reply,) = grid.send_and_receive([ProfileQuery().to_message(grid.get_node_ids()[0])])
    refused = reply.has_error() and "takes part in training with secure.aggregation = true and" in reply.error.reason
    assert refused == ("secure.signed" not in settings)


@pytest.mark.parametrize("algorithm", ["h-fedavg", "hsfl"])
def test_clients_of_whole_models_show_no_activations_and_labels(algorithm):
    grid = InProcessGrid(client_app, 8, run_config={**ON, "algorithm": algorithm})
    (reply,) = grid.send_and_receive([LabelsQuery().to_message(grid.get_node_ids()[0])])
    assert reply.has_error() == (algorithm == "h-fedavg")
    assert algorithm == "hsfl" or "trains whole models under secure aggregation" in reply.error.reason
