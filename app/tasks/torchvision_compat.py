"""Torchvision, imported so that it also works where its C++ operators cannot load.

The torchvision wheel is built for one build of torch. Beside another one (a CPU-only torch and the wheel
for CUDA) its operators cannot load, and then ``import torchvision`` itself fails: it attaches Python code
to ``torchvision::nms`` and ``torchvision::qnms``, which nobody has declared. Models, data sets and
transforms need neither operator, so it is enough to declare the two before the import.

Import torchvision from here, everywhere: ``from espalier.app.tasks.torchvision_compat import torchvision``.
"""

import sys
from importlib.machinery import PathFinder
from importlib.util import find_spec

import torch

_SCHEMA = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"


def _operators_load() -> bool:
    """Tell whether torchvision's compiled operators load into this process."""
    package = find_spec("torchvision")
    library = PathFinder.find_spec("_C", package.submodule_search_locations) if package else None
    if library is None:
        return False
    try:
        torch.ops.load_library(library.origin)
    except OSError:
        return False
    return True


if "torchvision" not in sys.modules and not _operators_load():
    # The declarations last as long as this object, so the module keeps it.
    _declared = torch.library.Library("torchvision", "DEF")
    for _name in ("nms", "qnms"):
        _declared.define(_name + _SCHEMA)

import torchvision  # noqa: E402

__all__ = ["torchvision"]
