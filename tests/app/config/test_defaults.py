"""Settings that are left open come to what the other settings say."""

import pytest

from espalier.app.config.parse import parse_config
from espalier.app.config.unused import unused_keys
from espalier.app.ground.errors import UserError
from tests.app.assembling import config_of


@pytest.mark.parametrize(
    ("settings", "selected"),
    [
        ({"num_clients": 8}, 2),
        ({"num_clients": 6}, 2),  # of three in a cell
        ({"num_clients": 7}, 2),  # the smaller cell has three
        ({"num_clients": 2}, 1),
        ({"num_clients": 12, "num_edges": 1}, 6),
        ({"num_clients": 12, "selected_per_edge": 5}, 5),
    ],
)
def test_a_plan_selects_half_of_a_cell(settings, selected):
    assert config_of(algorithm="rawhfl", **settings).plan.selected_per_edge == selected
    assert config_of(algorithm="hsfl", selection="resource-aware", **settings).plan.selected_per_edge == selected


def test_a_flat_run_with_plans_has_the_cells_of_two_tiers():
    settings = {"algorithm": "fedavg", "selection": "resource-aware", "num_clients": 12}
    assert config_of(**settings).plan.selected_per_edge == 3
    assert config_of(**settings, num_edges=3).plan.selected_per_edge == 2


def test_a_planned_client_trains_for_as_long_as_one_without_plans():
    assert config_of(algorithm="rawhfl").plan.max_local_rounds == 2
    assert config_of(algorithm="rawhfl", local_epochs=7).plan.max_local_rounds == 7
    assert config_of(algorithm="rawhfl", local_epochs=7, max_local_rounds=50).plan.max_local_rounds == 50


def test_runs_without_plans_leave_them_open():
    plan = config_of(algorithm="h-fedavg").plan
    assert (plan.selected_per_edge, plan.max_local_rounds) == (0, 0)


@pytest.mark.parametrize(
    ("settings", "batches"),
    [
        ({"algorithm": "rawhfl", "dataset": "video-caching"}, 10),
        ({"algorithm": "rawhfl", "dataset": "video-caching", "batches_per_epoch": 3}, 3),
        ({"algorithm": "h-fedavg", "dataset": "video-caching"}, 0),
        ({"algorithm": "rawhfl", "dataset": "digits"}, 0),
    ],
)
def test_local_rounds_of_plans_have_mini_batches_to_count_where_data_grow(settings, batches):
    assert config_of(**settings).train.batches_per_epoch == batches


def test_labels_are_registered_unless_data_grow():
    for algorithm in ("hsfl", "sfl-v2"):
        assert config_of(algorithm=algorithm).split.label_policy == "indices"
        assert config_of(algorithm=algorithm, label_policy="labels").split.label_policy == "labels"
        assert config_of(algorithm=algorithm, dataset="video-caching").split.label_policy == "labels"
    with pytest.raises(UserError, match=r"split\.label-policy = 'indices': allowed is 'labels' for dataset = 'video-"):
        config_of(algorithm="hsfl", dataset="video-caching", label_policy="indices")


def test_the_servers_blocks_have_the_clients_optimizer_unless_they_have_their_own():
    clients = {"optimizer": "adam", "momentum": 0.9, "weight_decay": 0.1}

    def of_server(**own):
        split = config_of(algorithm="hsfl", **clients, **own).split
        return split.server_optimizer, split.server_momentum, split.server_weight_decay

    assert of_server() == ("adam", 0.9, 0.1)
    assert of_server(server_optimizer="sgd", server_momentum=0.0) == ("sgd", 0.0, 0.1)
    assert of_server(server_weight_decay=0.0) == ("adam", 0.9, 0.0)
    with pytest.raises(UserError, match=r"split\.server-momentum = 1\.5: allowed is less than 1 or 'as-clients'"):
        of_server(server_momentum=1.5)


@pytest.mark.parametrize("algorithm", ["h-fedavg", "rawhfl", "phsfl", "fedavg-ub"])
def test_what_was_left_open_is_not_taken_for_given(algorithm):
    for dataset in ("digits", "video-caching"):
        config = config_of(algorithm=algorithm, dataset=dataset)
        assert unused_keys(config) == {}
        assert parse_config(config.as_dict()) == config
