"""The garbage collector stands still while a process imports the app, and goes on afterwards as before."""

import gc
import subprocess
import sys
from contextlib import suppress

import pytest

from espalier.app.ground.imports import uncollected


@pytest.mark.parametrize("is_enabled", [True, False])
def test_the_collector_goes_on_as_before(is_enabled):
    (gc.enable if is_enabled else gc.disable)()
    try:
        with suppress(ImportError), uncollected():
            inside = gc.isenabled()
            raise ImportError
        assert (inside, gc.isenabled()) == (False, is_enabled)
    finally:
        gc.enable()


COUNT = """
import gc, sys
passes = []
gc.callbacks.append(lambda phase, info: passes.append(sys.modules.get("torch") is not None))
import espalier.app.{name}
print(gc.isenabled(), sum(passes), gc.get_freeze_count() > 100_000)
"""


@pytest.mark.parametrize("name", ["client", "server"])
def test_it_does_not_look_through_the_modules_of_what_flower_starts(name):
    command = [sys.executable, "-c", COUNT.format(name=name)]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "True 0 True\n"
