"""The page First steps, done from its top to its end: its commands run as they are printed, and its files fit."""

import ast
import re
import shlex
import sys
from pathlib import Path

import pytest

from espalier.app.command_line import main
from espalier.app.wiring import clients, task_of_run
from tests.app.runs import summary

PAGE = (Path(__file__).parent.parent / "docs/first-steps.md").read_text()
BLOCKS = re.findall(r'^```(\w+)(?: title="([^"\n]+)")?\n(.*?)^```$', PAGE, re.M | re.S)


def write(title, text):
    """Change the file that a block names: all of it, one of its functions, or the line of a setting."""
    name, _, function = title.partition(": ")
    file = Path(name)
    before = file.read_text()
    if function:
        (node,) = [
            node for node in ast.walk(ast.parse(before)) if isinstance(node, ast.FunctionDef) and node.name == function
        ]
        lines = before.splitlines(keepends=True)
        text = "".join(lines[: node.lineno - 1]) + text + "".join(lines[node.end_lineno :])
    elif file.suffix == ".toml":
        (line,) = re.findall(f"^{text.partition('=')[0]}=.*\n", before, re.M)
        text = before.replace(line, text)
    file.write_text(text)


def forget():
    """Let the project's modules be imported, and its task be made, anew, as by another process."""
    task_of_run._built.cache_clear()
    clients._tasks.cache_clear()
    for name in [name for name in sys.modules if name.partition(".")[0] == "my_study"]:
        del sys.modules[name]


def run(command, monkeypatch):
    """Run a line of the page, if it installs nothing and starts no SuperLink; tests/test_wheel.py does these."""
    words = shlex.split(command, comments=True)
    if words[0] == "cd":
        monkeypatch.chdir(words[1])
        monkeypatch.syspath_prepend(Path.cwd())
    elif words[0] == "espalier":
        forget()
        quick = ["report.plots=false"] if words[1] == "pyproject.toml" else []
        assert main([*words[1:], *quick]) == 0
    else:
        assert words[:2] in (["pip", "install"], ["flwr", "run"])


def test_first_steps_lead_to_the_end_with_the_figures_that_the_page_says(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # files change within a second
    monkeypatch.chdir(tmp_path)
    for language, title, text in BLOCKS:
        if title:
            write(title, text)
        elif program := re.search(r"<<'END'\n(.*)^END$", text, re.M | re.S):
            exec(program[1], {})
        else:
            assert language == "bash"
            for command in text.splitlines():
                run(command, monkeypatch)
    forget()
    runs = sorted(Path("results").iterdir(), key=lambda folder: folder.stat().st_mtime)
    accuracies = [summary(folder)["global"]["accuracy"]["mean"] for folder in runs]
    printed = [float(figure) for figure in re.findall(r"^\| \d \| .+ \| (\S+) \|$", PAGE, re.M)]
    assert accuracies[:5] == pytest.approx(printed, abs=0.01)  # sums round differently on another kind of CPU
    assert accuracies[5] > 0.8  # cut
    assert capsys.readouterr().out.count("all laws hold") == 3
