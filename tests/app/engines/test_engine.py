"""What an engine can do is found out without starting it, and which there are."""

import re

import pytest

from espalier.app.config.help import help_text
from espalier.app.config.parse import parse_config
from espalier.app.engines.engine import serves_edges
from espalier.app.engines.opening import Opening, open_engine
from espalier.app.engines.ray import Ray
from espalier.app.ground.errors import UserError
from espalier.app.settings.engine_kinds import EngineKind
from tests.app.assembling import config_of, engine_of


class Unstarted(Ray):
    def __init__(self):
        pass

    @property
    def grid(self):
        raise AssertionError("workers were started")


def test_whether_an_engine_serves_edges_is_asked_without_opening_its_grid():
    assert serves_edges(Unstarted())
    assert not serves_edges(engine_of(config_of(num_clients=2)))


@pytest.mark.parametrize(
    ("text", "allowed"),
    [
        ("rya", "'flower', 'in-process', 'ray', or package.module:NAME of your own: did you mean 'ray'?"),
        ("math:pi", "an espalier.app.settings.engine_kinds.EngineKind, not a float"),
        ("no_such_module:ENGINE", "what can be imported (ModuleNotFoundError: No module named 'no_such_module')"),
    ],
)
def test_an_engine_that_there_is_not_gets_one_line(text, allowed):
    with pytest.raises(UserError, match=f"^{re.escape(f'engine = {text!r}: allowed is {allowed}')}$"):
        parse_config({"engine": text})


def test_an_engine_whose_package_is_not_installed_says_what_to_type():
    kind = EngineKind("far", "no_such_package.engine:opened", requires="no_such_package")
    opening = Opening(2, 0, {}, 0, 0, threads=1, on_gpu=False, grid=None)
    text = "engine = 'far': allowed is another one: it is not installed (pip install no_such_package)"
    with pytest.raises(UserError, match=f"^{re.escape(text)}$"):
        open_engine(kind, opening)


def test_the_help_names_the_engines_that_there_are():
    assert "Allowed: flower, in-process, ray, package.module:NAME of your own." in help_text("engine")
