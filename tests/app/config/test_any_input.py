"""Whatever a config holds, it is taken, or refused in one line."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from espalier.app.command_line import main
from espalier.app.config.keys import keys_tagged
from espalier.app.config.parse import KEYS, parse_config, read_arguments, read_toml
from espalier.app.config.run_config import RunConfig
from espalier.app.config.together import check_strategies
from espalier.app.config.unused import unused_keys
from espalier.app.ground.errors import UserError
from espalier.app.settings.section import Tag

NASTY = [
    *("", "\0", "a\0b", "\n", "a\nb", "\x1b[31mred", "\ud800", "💥", "~", "~nouser/x", "..", "x" * 300, "x" * 5000),
    *("/" * 5000, "1e999", "1e400-1e401", "1-" * 500, "1," * 500, "9" * 5000, "[" * 5000, "{a = 1}", "FedAvg(" * 200),
    *("FedAdam(eta=1e999)", "FedAvg(min_train_nodes=1e400)", "Krum(num_malicious_nodes=-1)", "0x10", "١", "nan"),
    *(10**400, -(10**400), 2**63, 10**18, -1, 0, 1e308, -1e308, 5e-324, float("nan"), float("inf"), float("-inf")),
    *(True, None, [], [1, "a"], {"a": 1}, b"x"),
]
TEXTS = some.text(max_size=30) | some.sampled_from([text for text in NASTY if isinstance(text, str)])
VALUES = some.sampled_from(NASTY) | TEXTS | some.integers() | some.floats() | some.booleans() | some.sampled_from(KEYS)


def one_line_at_most(parse, *arguments):
    """Parse, and return the line of a refusal."""
    try:
        parse(*arguments)
    except UserError as error:
        line = str(error)
        assert line.isprintable()
        assert 10 < len(line) < 3000
        return line
    return ""


@pytest.mark.parametrize("key", KEYS)
def test_a_nasty_value_of_any_key(key):
    for value in NASTY:
        line = one_line_at_most(parse_config, {key: value})
        assert not line or key in line


@given(some.dictionaries(some.sampled_from(KEYS), VALUES, max_size=6))
@settings(max_examples=150, deadline=None, derandomize=True, database=None)
def test_any_values_together(values):
    one_line_at_most(looked_through, values)


# Values that are good by themselves, so that it comes to what goes together.
GOOD = {
    "algorithm": ["h-fedavg", "fedavg", "hsfl", "phsfl", "sfl-v1", "sfl-v2", "sl", "rawhfl", "h-fedavg-m1"],
    "dataset": ["digits", "video-caching", "image-folder"],
    "engine": ["flower", "in-process", "ray"],
    "edge-strategy": ["FedAvg", "FedAdam(eta=0.1)", "FedMedian", "Krum(num_malicious_nodes=1)", "FedProx"],
    "cloud-strategy": ["FedAvg", "FedYogi", "FedTrimmedAvg(beta=0.2)", "FedAdagrad"],
    "selection": ["everybody", "resource-aware"],
    "partition": ["dirichlet", "shards", "iid", "own"],
    "participation": [1.0, 0.5],
    "stack": [0, 1, 4],
    "cut-layer": [1, 2, 99, "1,2", "best"],
    "split.transport": ["messages", "stream"],
    "split.label-policy": ["auto", "indices", "labels"],
    "stream.payload": ["float32", "int8"],
    "plan.resources": ["simulated", "measured"],
    "deploy.role": ["server", "cloud"],
    "num-edges": [0, 1, 3],
    "edge-names": ["", "west,east"],
    "guard.mode": ["leave-out", "clip", "warn", "off"],
    "train.weighting": ["examples", "equal"],
    "train.drop-last": [False, True],
    "train.cuda-graph": [False, True],
    "train.schedule": ["constant", "cosine"],
}


@given(some.fixed_dictionaries({}, optional={key: some.sampled_from(values) for key, values in GOOD.items()}))
@settings(max_examples=200, deadline=None, derandomize=True, database=None)
def test_any_settings_together(values):
    one_line_at_most(looked_through, values)


def looked_through(values):
    """Do all that is done with a config before a run begins."""
    config = parse_config(values)
    check_strategies(config)
    for key, reason in unused_keys(config).items():
        assert key in KEYS
        assert reason.isprintable()


@given(some.lists(some.tuples(some.sampled_from(KEYS) | TEXTS, TEXTS).map("=".join) | TEXTS, max_size=4))
@settings(max_examples=150, deadline=None, derandomize=True, database=None)
def test_any_command_line(arguments):
    one_line_at_most(lambda: parse_config(read_arguments(arguments)))


@pytest.mark.parametrize("text", [f"seed = {'9' * 5000}", f"a = {'[' * 20000}", "a = \ud800", "a = 1\na = 2", "\0"])
def test_any_toml_file(text, tmp_path):
    (tmp_path / "file.toml").write_bytes(text.encode("utf-8", "surrogatepass"))
    assert "file.toml: is not TOML" in one_line_at_most(read_toml, tmp_path / "file.toml")


@pytest.mark.parametrize("key", sorted(keys_tagged(Tag.PATH)))
@pytest.mark.parametrize("path", ["a\0b", "~nouser/x", "x" * 300, "/x" * 3000, "\ud800"])
def test_paths_that_can_not_be(key, path, capsys):
    assert main([f"{key}={path}"]) == 2
    captured = capsys.readouterr().err
    assert captured.startswith(f"error: {key} = ")
    assert captured.count("\n") == 1
    assert ": allowed is a " in captured


@pytest.mark.parametrize(
    "key",
    [
        *("learning-rate", "train.weight-decay", "split.server-learning-rate", "split.server-weight-decay"),
        *("fine-tune.rate", "plan.min-frequency-hz", "plan.downlink-bits-per-second"),
    ],
)
def test_numbers_beyond_those_that_are_trained_with(key):
    assert f"{key} = 1e+308: allowed is less than or equal to 1000" in one_line_at_most(parse_config, {key: 1e308})


def test_every_number_has_an_upper_end():
    unbounded = [
        key
        for key, default in RunConfig().as_dict().items()
        if isinstance(default, int | float) and not isinstance(default, bool) and key != "cut-layer"
        if not one_line_at_most(parse_config, {key: 10**400})
    ]
    assert unbounded == []
