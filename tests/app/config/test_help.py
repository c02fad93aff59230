"""``--help`` says every key with its default and what it means, by section."""

import subprocess
import sys

from espalier.app.algorithms.registry import ALGORITHMS
from espalier.app.command_line import main
from espalier.app.config.help import help_text
from espalier.app.config.run_config import RunConfig


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


def test_it_is_printed(capsys):
    assert main(["--help"]) == 0
    assert (
        "  stream.payload = 'float32'\n      Format of activations and gradients in a stream: "
        in capsys.readouterr().out
    )


def test_somebody_may_read_the_first_line_only():
    command = [sys.executable, "-m", "espalier", "--help"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "python -m espalier KEY=VALUE ... [FILE.toml ...]\n"
        process.stdout.close()
        assert process.stderr.read() == ""
    assert process.returncode == 0
