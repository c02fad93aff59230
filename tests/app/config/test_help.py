"""``--help`` says every key with its default and what it means, by section."""

import os
import py_compile
import sys
from importlib import import_module

import pytest

import espalier
from espalier.app import command_line
from espalier.app.algorithms.registry import ALGORITHMS
from espalier.app.command_line import main
from espalier.app.config.help import help_text
from espalier.app.config.run_config import RunConfig
from espalier.app.settings.sections import Split


def test_every_key_has_its_default_and_a_line():
    lines = help_text().splitlines()
    for key, value in RunConfig().as_dict().items():
        place = lines.index(f"  {key} = {value!r}")
        assert lines[place + 1].startswith("      ")
        assert lines[place + 1].endswith(".")


def test_every_algorithm_has_a_line():
    lines = help_text().split("Algorithms:\n")[1].splitlines()
    assert [line.split()[0] for line in lines] == list(ALGORITHMS)
    assert all(line.endswith(".") and len(line) <= 120 for line in lines)


def test_every_choice_has_its_values():
    lines = help_text().splitlines()
    place = lines.index("  split.transport = 'messages'")
    assert lines[place + 2] == "      Allowed: messages, stream."
    place = lines.index("  report.plots = True")
    assert lines[place + 2] == "      Allowed: true, false."
    place = lines.index("  split.server-momentum = 'as-clients'")
    assert lines[place + 2] == "      Allowed: as-clients, or a number."


@pytest.mark.parametrize(
    ("word", "keys"),
    [
        ("learning-rate", ["learning-rate"]),
        ("fine-tune", ["fine-tune.steps", "fine-tune.rate"]),
        ("cut-", ["cut-layer"]),
        ("(Psi)", ["plan.max-overlap"]),
        ("lerning", []),
    ],
)
def test_a_word_shows_what_is_named_so_or_explained_with_it(word, keys):
    shown = [
        line.split(" = ")[0].strip() for line in help_text(word).splitlines() if line.startswith("  ") and " = " in line
    ]
    assert [key for key in shown if not key.startswith("With")] == keys


def test_a_word_may_be_a_section_or_an_algorithm():
    split = help_text("split")
    assert all(f"  {key} = " in split for key in Split.keys().values())
    assert "learning-rate = 0.1" not in split
    assert [line.split()[0] for line in help_text("phsfl").splitlines()] == ["Algorithms:", "phsfl"]


def test_help_of_several_words_and_of_none(capsys):
    assert main(["help", "seed", "alpha"]) == 0
    assert [line for line in capsys.readouterr().out.splitlines() if " = " in line] == ["  seed = 0", "  alpha = 0.5"]
    assert main(["help", "lerning-rate"]) == 2
    assert "nearest are learning-rate" in capsys.readouterr().err
    assert main(["help"]) == 0
    assert capsys.readouterr().out.startswith("python -m espalier KEY=VALUE")


def test_the_version_is_printed(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"espalier {espalier.__version__}\n"


def test_a_command_without_settings_says_what_begins_and_how_to_stop_it(capsys, monkeypatch):
    monkeypatch.setattr(command_line, "engine_of", interrupt)
    assert main([]) == 130
    first, second, *_ = capsys.readouterr().out.splitlines()
    assert first == "nothing given: h-fedavg on digits begins, 8 clients, 10 global rounds."
    assert second == "Ctrl-C stops it and says how to go on; espalier help lists all settings."
    assert main(["seed=1"]) == 130
    assert capsys.readouterr().out == ""


def interrupt(config, *, cores):
    raise KeyboardInterrupt


def test_it_is_printed(capsys):
    assert main(["--help"]) == 0
    assert (
        "  stream.payload = 'float32'\n      Format of activations and gradients in a stream: "
        in capsys.readouterr().out
    )


def test_somebody_may_read_the_first_line_only(monkeypatch, capsys):
    """As `head` does: then the pipe has no reader, and what is left to write is nobody's trouble."""
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as pipe:
        monkeypatch.setattr(sys, "stdout", pipe)
        assert main(["--help"]) == 0
    monkeypatch.undo()
    assert capsys.readouterr() == ("", "")


def test_where_only_compiled_files_are_installed_nothing_is_said_of_settings(tmp_path, monkeypatch):
    source = tmp_path / "own_settings.py"
    imports = "from espalier.app.settings.section import Section"
    source.write_text(f"{imports}\nclass Own(Section):\n    rate: float = 0.1\n    '''A rate.'''\n")
    py_compile.compile(str(source), cfile=str(tmp_path / "compiled/own_settings.pyc"))
    for folder, meanings in ((tmp_path, {"rate": "A rate."}), (tmp_path / "compiled", {})):
        with monkeypatch.context() as patch:
            patch.syspath_prepend(folder)
            patch.delitem(sys.modules, "own_settings", raising=False)
            assert import_module("own_settings").Own.meanings() == meanings
