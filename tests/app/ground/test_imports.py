"""The garbage collector stands still while a process imports the app, and goes on afterwards as before."""

import gc
import subprocess
import sys
from contextlib import suppress

import pytest

from espalier.app.ground.imports import uncollected


@pytest.mark.parametrize("is_enabled", [True, False])
def test_the_collector_goes_on_as_before_and_this_process_which_has_pytorch_keeps_nothing(is_enabled):
    frozen = gc.get_freeze_count()
    (gc.enable if is_enabled else gc.disable)()
    try:
        for error in (ImportError, None):
            with suppress(ImportError), uncollected():
                inside = gc.isenabled()
                if error:
                    raise error
            assert (inside, gc.isenabled(), gc.get_freeze_count()) == (False, is_enabled, frozen)
    finally:
        gc.enable()


COUNT = """
import gc, sys
passes = []
gc.callbacks.append(lambda phase, info: passes.append("torch" in sys.modules))
sys.argv[1:] = ["--version"]
{program}
print(gc.isenabled(), sum(passes), gc.get_freeze_count() > 100_000, file=sys.stderr)
"""
OF_A_USER = """
import gc, weakref, torch
model = torch.nn.Linear(1, 1)
model.itself = [model]
alive = weakref.ref(model)
import espalier.app.client, espalier.app.server
del model
gc.collect()
print(alive())
"""


@pytest.mark.parametrize(
    "program",
    [
        "import espalier.app.client",
        "import espalier.app.server",
        "from espalier.app.entry_point import entry; entry()",
    ],
)
def test_it_does_not_look_through_the_modules_of_a_process_that_begins(program):
    assert said_by(COUNT.format(program=program)).stderr == "True 0 True\n"


def test_what_a_user_has_made_before_is_no_longer_there_once_nobody_has_it():
    assert said_by(OF_A_USER).stdout == "None\n"


def said_by(program):
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
