"""Hierarchical, split and resource-aware federated learning for Flower.

`espalier.strategies` works in any Flower project, `espalier.clients` is what runs on a device, `espalier.sim` has the
in-process Grid and the simulated radio world, and `espalier.app` is the Flower app.
"""

from pathlib import Path

from espalier.version import __version__ as __version__

# In the project's tree the packages are folders beside this one; a wheel has them inside of it.
if not (Path(__file__).parent / "strategies").is_dir():
    __path__.append(str(Path(__file__).parent.parent))
