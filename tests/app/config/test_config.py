"""The run config: what it takes, and the one line it answers to what it doesn't."""

import sys
import tomllib
from pathlib import Path

import pytest
from flwr.serverapp.strategy import FedAdam, Krum
from torch import nn

from espalier.app.command_line import main
from espalier.app.config.parse import flat, parse_config, read_arguments
from espalier.app.config.run_config import RunConfig
from espalier.app.config.together import check_strategies
from espalier.app.ground.checkpoint import load_state
from espalier.app.ground.errors import UserError
from espalier.app.ground.strategy_spec import STRATEGIES, parse_strategy
from espalier.app.wiring.cloud import check_averages
from tests.app.runs import lines, run_app

ROOT = Path(__file__).parents[3]


def test_flwr_run_has_the_same_keys_and_defaults():
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert flat(pyproject["tool"]["flwr"]["app"]["config"]) == RunConfig().as_dict()


def test_every_key_is_explained_in_the_docs():
    text = (ROOT / "docs/configuration.md").read_text()
    assert [key for key in RunConfig().as_dict() if f"`{key}`" not in text] == []


@pytest.mark.parametrize(
    ("values", "parts"),
    [
        ({"edge-round": 2}, ["unknown key 'edge-round'", "did you mean 'edge-rounds', '", "? all keys: espalier help"]),
        ({"zzz": 2}, ["unknown key 'zzz'", "did you mean '"]),
        ({"seed": "one"}, ["seed = 'one'", "integer"]),
        ({"alpha": "0.5"}, ["alpha = '0.5'", "number"]),
        ({"global-rounds": True}, ["global-rounds = True", "integer"]),
        ({"output-dir": 3}, ["output-dir = 3", "string"]),
        ({"algorithm": "fedsgd"}, ["algorithm = 'fedsgd'", "'fedavg', 'h-fedavg'"]),
        ({"dataset": "imagenet"}, ["dataset = 'imagenet'", "'digits'", "'image-folder'"]),
        ({"model": "vgg"}, ["model = 'vgg'", "'resnet18'"]),
        ({"partition": "x"}, ["partition = 'x'", "'dirichlet'"]),
        ({"engine": "dask"}, ["engine = 'dask'", "'flower', 'in-process', 'ray', or package.module:NAME"]),
        ({"ray.workers": -1}, ["ray.workers = -1", "greater than or equal to 0"]),
        ({"cloud-strategy": "FedFoo"}, ["cloud-strategy = 'FedFoo'", "FedAdam", "Krum"]),
        ({"edge-strategy": "FedXgbBagging"}, ["edge-strategy = 'FedXgbBagging'", "FedAvg"]),
        ({"edge-strategy": "FedProx(mu=1)"}, ["edge-strategy = 'FedProx(mu=1)'", "proximal_mu"]),
        ({"edge-strategy": "FedProx(0.1)"}, ["edge-strategy = 'FedProx(0.1)'", "NAME(parameter=value, ...)"]),
        ({"edge-strategy": "FedProx("}, ["edge-strategy = 'FedProx('", "NAME(parameter=value, ...)"]),
        ({"edge-strategy": "__import__('os')"}, ["NAME(parameter=value, ...)"]),
        ({"cloud-strategy": "FedAdam(eta=True)"}, ["a number for eta"]),
        ({"cloud-strategy": "FedAdam(eta=-1)"}, ["a number > 0 for eta"]),
        ({"edge-strategy": "FedProx(proximal_mu=-1)"}, ["a number >= 0 for proximal_mu"]),
        ({"edge-strategy": "FedAvgM(server_momentum=2)"}, ["a number >= 0 and < 1 for server_momentum"]),
        ({"cloud-strategy": "Krum(num_malicious_nodes=0.5)"}, ["an integer for num_malicious_nodes"]),
        ({"cloud-strategy": "FedTrimmedAvg(beta=0.7)"}, ["FedTrimmedAvg(beta=0.7)", "[0, 0.5)"]),
        ({"cloud-strategy": "QFedAvg"}, ["cloud-strategy = 'QFedAvg'", "QFedAvg(client_learning_rate=...)"]),
        (
            {"cloud-strategy": "QFedAvg(q=0.1)"},
            ["allowed is QFedAvg(q=..., client_learning_rate=...): QFedAvg needs client_learning_rate"],
        ),
        ({"edge-strategy": "FedAdm"}, ["edge-strategy = 'FedAdm'", "did you mean FedAdam?"]),
        (
            {"deploy.role": "cloud", "engine": "in-process"},
            ["engine = 'in-process'", "type: flwr run . --run-config 'deploy.role"],
        ),
        ({"num-edges": 9}, ["num-edges = 9", "at most num-clients = 8"]),
        ({"num-edges": -1}, ["num-edges = -1", "greater than or equal to 0"]),
        ({"alpha": 0.0}, ["alpha = 0.0", "greater than 0"]),
        ({"alpha": -1}, ["alpha = -1", "greater than 0"]),
        ({"alpha": float("nan")}, ["alpha = nan"]),
        ({"global-rounds": 0}, ["global-rounds = 0", "greater than 0"]),
        ({"edge-rounds": 0}, ["edge-rounds = 0", "greater than 0"]),
        ({"participation": 0.0}, ["participation = 0.0", "greater than 0"]),
        ({"participation": 1.5}, ["participation = 1.5", "less than or equal to 1"]),
        ({"edge-strategy": "Krum(num_malicious_nodes=-1)"}, ["an integer >= 0 for num_malicious_nodes"]),
        ({"edge-strategy": "QFedAvg(client_learning_rate=0.1,train_loss_key='x')"}, ["a parameter of QFedAvg: "]),
        ({"train.weighting": "uniform"}, ["train.weighting = 'uniform'", "'examples' or 'equal'"]),
        (
            {"train.weighting": "equal", "algorithm": "rawhfl"},
            ["train.weighting = 'equal'", "'examples': rawhfl weighs all"],
        ),
        ({"train.weighting": "equal", "algorithm": "centralised"}, ["'examples': centralised averages no models"]),
        ({"train.weighting": "equal", "algorithm": "sl"}, ["sl averages no models, unless num-edges = 2 or more"]),
        ({"learning-rate": 0}, ["learning-rate = 0", "greater than 0"]),
        ({"train.schedule": "cosine", "algorithm": "rawhfl"}, ["'constant' for rawhfl, whose edges add up gradients"]),
        ({"train.schedule": "cosine", "async.mode": "fedbuff"}, ["'constant' for async.mode = 'fedbuff'"]),
        ({"train.momentum": 1.0}, ["train.momentum = 1.0", "less than 1"]),
        ({"seed": -1}, ["seed = -1"]),
        ({"seed": 2**64}, ["seed = 18446744073709551616", "less than"]),
        ({"alpha": 1e300}, ["alpha = 1e+300", "1000000"]),
        ({"output-dir": "~nobody-of-this-name/x"}, ["output-dir = '~nobody-of-this-name/x'", "a path"]),
        ({"edge-strategy": "FedAvg(x=" + "-" * 5000 + "1)"}, ["edge-strategy"]),
        ({"dataset": "image-folder"}, ["data-dir = ''", "train/<class>"]),
    ],
)
def test_bad_values_get_one_line_with_the_key_the_value_and_what_is_allowed(values, parts):
    with pytest.raises(UserError) as caught:
        parse_config(values)
    assert "\n" not in str(caught.value)
    assert [part for part in parts if part not in str(caught.value)] == []


@pytest.mark.parametrize(("given", "ends"), [(1e-5, (1e-5, 1e-5)), ("0.1-0.8", (0.1, 0.8)), ("0.3", (0.3, 0.3))])
def test_exploitation_is_a_number_or_a_range(given, ends):
    assert parse_config({"caching.exploitation": given}).caching.exploitation.ends == ends


@pytest.mark.parametrize(
    ("given", "ends"),
    [(-5, (-5, -5)), ("20-30", (20, 30)), ("-10--5.5", (-10, -5.5)), ("1e-1-2E1", (0.1, 20)), ("-1-.5", (-1, 0.5))],
)
def test_devices_are_drawn_from_a_number_or_a_range(given, ends):
    assert parse_config({"radio.max-power-dbm": given}).radio.device_ranges["max_power_dbm"] == ends


def test_strategies_take_their_parameters_and_defaults_give_way():
    adam = parse_strategy("cloud-strategy", "FedAdam(eta=0.02, min_train_nodes=3)").build(
        {"min_train_nodes": 1, "tau": 1.0}
    )
    assert isinstance(adam, FedAdam)
    assert (adam.eta, adam.min_train_nodes, adam.tau) == (0.02, 3, 1.0)
    krum = parse_strategy("edge-strategy", "Krum(num_malicious_nodes=1)").build({})
    assert isinstance(krum, Krum)
    assert krum.num_malicious_nodes == 1


@pytest.mark.parametrize("name", STRATEGIES)
def test_every_strategy_can_be_built(name):
    text = "QFedAvg(client_learning_rate=0.1)" if name == "QFedAvg" else name
    assert type(parse_strategy("edge-strategy", text).build({})).__name__ == name


MODULE = """
from flwr.serverapp.strategy import FedAvg, FedProx, Strategy

class Scaled(FedAvg):
    def __init__(self, scale: float, **options):
        super().__init__(**options)
        self.scale = scale

class Bare(FedProx):
    def __init__(self):
        super().__init__(min_available_nodes=1)

class Keeps(FedAvg):
    def __init__(self, **options):
        super().__init__(**options)
        self.seen = set()

class SavesItself(FedAvg):
    def state_dict(self):
        return {"seen": list(self.seen)}

    def load_state_dict(self, state):
        self.seen = set(state["seen"])

    def aggregate_train(self, *what):
        self.seen = {1}
        return super().aggregate_train(*what)

class KeepsLater(FedAvg):
    def aggregate_train(self, *what):
        self.seen = {1}
        return super().aggregate_train(*what)

class Broken(FedAvg):
    def __init__(self):
        raise RuntimeError("not\\ntoday")

class Untyped(FedAvg):
    def __init__(self, fraction_train=1.0, num_malicious_nodes=0, client_learning_rate: float | None = None):
        super().__init__(fraction_train=fraction_train)

class Plain(Strategy):
    def summary(self):
        pass
    configure_train = aggregate_train = configure_evaluate = aggregate_evaluate = summary

number = 3
"""


@pytest.fixture
def own_module(tmp_path, monkeypatch):
    (tmp_path / "own_strategies.py").write_text(MODULE)
    (tmp_path / "ends_the_process.py").write_text("raise SystemExit(0)")
    monkeypatch.syspath_prepend(tmp_path)
    yield
    sys.modules.pop("own_strategies", None)


def test_a_strategy_of_ones_own_is_named_with_its_module(own_module):
    config = parse_config({"edge-strategy": "own_strategies:Scaled(scale=0.5, min_train_nodes=2)"})
    check_strategies(config)
    edge = config.federation.edge_strategy.build({"fraction_train": 0.5, "min_train_nodes": 1})
    assert (edge.scale, edge.fraction_train, edge.min_train_nodes) == (0.5, 0.5, 2)
    bare = parse_config({"cloud-strategy": "own_strategies:Bare"}).federation.cloud_strategy.build(
        {"min_train_nodes": 1}
    )
    assert (type(bare).__name__, bare.min_train_nodes, bare.min_available_nodes) == ("Bare", 2, 1)
    plain = parse_config({"edge-strategy": "own_strategies:Plain"}).federation.edge_strategy.build(
        {"min_train_nodes": 1}
    )
    assert type(plain).__name__ == "Plain"


@pytest.mark.parametrize(
    ("text", "allowed"),
    [
        ("own_strategies:Missing", "what can be imported (AttributeError: module 'own_strategies' has no attribute"),
        ("no_such_module:Scaled", "what can be imported (ModuleNotFoundError: No module named 'no_such_module')"),
        ("ends_the_process:Scaled", "what can be imported (SystemExit: 0)"),
        ("own_strategies:number", "a subclass of flwr.serverapp.strategy.Strategy"),
        ("own_strategies:Bare(scale=1)", "a parameter of Bare: "),
        ("own_strategies:Scaled", "Scaled(scale=...): Scaled needs scale"),
        ("own_strategies:Scaled(scale='big')", "a number for scale"),
        ("own_strategies:Scaled(scale=1.0, nonsense=1)", "what Scaled takes (TypeError: "),
        ("own_strategies:Untyped(fraction_train='a')", "a number for fraction_train"),
        ("own_strategies:Untyped(num_malicious_nodes=None)", "an integer for num_malicious_nodes"),
        ("own_strategies:Untyped(client_learning_rate='a')", "a number for client_learning_rate"),
        ("own_strategies:Broken", "what Broken takes (RuntimeError: not today)"),
        ("own_strategies:", "NAME or NAME(parameter=value, ...)"),
        (":FedAvg", "NAME or NAME(parameter=value, ...)"),
    ],
)
def test_a_strategy_that_is_none_gets_one_line(own_module, text, allowed):
    with pytest.raises(UserError) as caught:
        check_strategies(parse_config({"edge-strategy": text}))
    assert str(caught.value).startswith(f"edge-strategy = {text!r}: allowed is {allowed}")
    assert "\n" not in str(caught.value)


def test_a_strategy_of_ones_own_says_what_it_is_to_split_training(own_module):
    given = {"algorithm": "sfl-v2", "num-edges": 2, "cloud-strategy": "own_strategies:Bare"}
    with pytest.raises(UserError, match="in sfl-v2 clients share the server's block"):
        check_strategies(parse_config(given))
    with pytest.raises(UserError, match=r"participation = 0\.5: allowed is 1\.0: Bare has no fraction_train"):
        check_strategies(parse_config({"edge-strategy": "own_strategies:Bare", "participation": 0.5}))


@pytest.mark.parametrize(("name", "rounds"), [("Keeps", 0), ("KeepsLater", 1)])
def test_a_strategy_whose_state_cannot_be_saved_gets_one_line(own_module, tmp_path, capsys, name, rounds):
    folder = tmp_path / "run"
    arguments = [f"edge-strategy=own_strategies:{name}", "num-clients=2", "batches-per-epoch=1"]
    assert main([*arguments, f"output-dir={folder}"]) == 2
    line = f"error: {name}.seen is a set, which can't be saved: give the class methods state_dict() and load_state"
    assert line in capsys.readouterr().err
    assert len(lines(folder, "global")) == rounds if rounds else not folder.exists()


def test_a_strategy_that_saves_itself_is_first_asked_after_a_round(own_module, tmp_path):
    folder = run_app(tmp_path / "run", edge_strategy="own_strategies:SavesItself", num_clients=2, batches_per_epoch=1)
    assert load_state(folder / "state.npz")["strategies"]["edges"]["edge-0"]["seen"] == [1]


def test_clients_need_not_have_the_servers_strategies():
    parse_config({"edge-strategy": "only.at_the_server:Strategy(x=1)", "cloud-strategy": "only.there:Too"})


@pytest.mark.parametrize(("text", "value"), [(".3", 0.3), ("1.", 1.0), ("-.5", -0.5), ("+2.e-3", 0.002), (".5E1", 5.0)])
def test_a_number_may_end_or_begin_with_its_point(text, value):
    assert read_arguments([f"learning-rate={text}", f"output-dir={text}"]) == {
        "learning-rate": value,
        "output-dir": text,
    }


def test_command_lines_are_key_value_pairs_and_files_and_the_last_one_wins(tmp_path):
    file = tmp_path / "a.toml"
    file.write_text('alpha = 0.1\nalgorithm = "fedavg"\n')
    arguments = [
        "alpha=0.7",
        str(file),
        "algorithm=h-fedavg",
        "seed=3",
        'output-dir="x y"',
        "edge-strategy=FedProx(proximal_mu=0.1)",
    ]
    assert read_arguments(arguments) == {
        "alpha": 0.1,
        "algorithm": "h-fedavg",
        "seed": 3,
        "output-dir": "x y",
        "edge-strategy": "FedProx(proximal_mu=0.1)",
    }


@pytest.mark.parametrize("text", ["2026-11-21", "5", "true", "[1]"])
def test_what_looks_like_something_else_is_text_for_a_key_that_takes_text(text):
    assert read_arguments([f"output-dir={text}", "seed=5"]) == {"output-dir": text, "seed": 5}


@pytest.mark.parametrize("key", ["cloud-strategy", "edge-strategy"])
def test_qfedavg_is_refused_for_a_model_with_integers(key):
    strategies = [parse_strategy(key, "QFedAvg(client_learning_rate=0.1)")]
    model = nn.Sequential(nn.Linear(2, 2))
    check_averages(strategies, model)
    with pytest.raises(
        UserError, match=f"^{key} = .*QFedAvg can't average integers, such as the model's 1.num_batches"
    ):
        check_averages(strategies, model.append(nn.BatchNorm1d(2)))


@pytest.mark.parametrize(("argument", "part"), [("oops", "KEY=VALUE"), ("no.toml", "no.toml: can't be read")])
def test_bad_arguments_get_one_line(argument, part):
    with pytest.raises(UserError, match=part):
        read_arguments([argument])


def test_a_file_that_is_not_toml_is_named(tmp_path):
    file = tmp_path / "a.toml"
    file.write_text("alpha = = 1")
    with pytest.raises(UserError, match=r"a\.toml: is not TOML"):
        read_arguments([str(file)])
