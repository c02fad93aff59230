"""Options of `flwr run` that say some settings in several places."""

from pathlib import Path

from flwr.common.config import parse_config_args
from local import edge_settings, one_run_config, run_config


def test_of_several_run_configs_the_last_value_of_each_key_counts():
    options = [
        "--stream",
        "--run-config",
        "a=1 deploy.transport=\"stream\" s='x y'",
        "--run-config=deploy.role='edge' a=2",
    ]
    others, name, config = one_run_config([*options, "-c", "b=true"])
    assert (others, name) == ("--stream", "--run-config")
    assert parse_config_args([config]) == {
        "a": 2,
        "b": True,
        "deploy.transport": "stream",
        "deploy.role": "edge",
        "s": "x y",
    }


def test_edges_on_this_machine_open_no_port_that_the_clouds_run_opens():
    given = ["--run-config", "deploy.metrics-port=9100 stream.port=9200 resume='x'"]
    *_, config = one_run_config([*given, *run_config(edge_settings("edge-0", 2, Path("meeting"), Path("results")))])
    found = parse_config_args([config])
    assert (found["deploy.metrics-port"], found["stream.port"], found["resume"]) == (0, 0, "")


def test_a_file_of_settings_and_none_are_left_as_they_are():
    assert one_run_config(["--run-config", "own.toml"]) == ["--run-config", "own.toml"]
    assert one_run_config(["--stream"]) == ["--stream"]
