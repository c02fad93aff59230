"""The algorithms by name, and those of a user's own."""

import difflib
from dataclasses import replace
from typing import NoReturn

from espalier.app.algorithms.algorithm import Algorithm, Site
from espalier.app.algorithms.centralised import CENTRALISED
from espalier.app.algorithms.ditto import DITTO
from espalier.app.algorithms.fedavg import FEDAVG
from espalier.app.algorithms.fedavg_ub import FEDAVG_UB
from espalier.app.algorithms.feddyn import FEDDYN
from espalier.app.algorithms.fednova import FEDNOVA
from espalier.app.algorithms.fedper import FEDPER
from espalier.app.algorithms.h_fedavg import H_FEDAVG
from espalier.app.algorithms.h_fedavg_m1 import H_FEDAVG_M1
from espalier.app.algorithms.h_fedavg_m2 import H_FEDAVG_M2
from espalier.app.algorithms.h_fedavg_ub import H_FEDAVG_UB
from espalier.app.algorithms.hsfl import HSFL
from espalier.app.algorithms.hsfl_feddyn import HSFL_FEDDYN
from espalier.app.algorithms.hsfl_scaffold import HSFL_SCAFFOLD
from espalier.app.algorithms.mtgc import MTGC
from espalier.app.algorithms.phsfl import PHSFL
from espalier.app.algorithms.rawhfl import RAWHFL
from espalier.app.algorithms.scaffold import SCAFFOLD
from espalier.app.algorithms.sfl_v1 import SFL_V1
from espalier.app.algorithms.sfl_v2 import SFL_V2
from espalier.app.algorithms.sl import SL
from espalier.app.algorithms.top_popular import TOP_POPULAR
from espalier.app.ground.errors import bad_value
from espalier.app.ground.object_spec import ObjectSpec

ALGORITHMS = {
    algorithm.name: algorithm
    for algorithm in (
        FEDAVG,
        H_FEDAVG,
        SL,
        SFL_V1,
        SFL_V2,
        HSFL,
        PHSFL,
        SCAFFOLD,
        HSFL_SCAFFOLD,
        FEDDYN,
        HSFL_FEDDYN,
        FEDNOVA,
        MTGC,
        FEDPER,
        DITTO,
        RAWHFL,
        H_FEDAVG_M1,
        H_FEDAVG_M2,
        H_FEDAVG_UB,
        FEDAVG_UB,
        CENTRALISED,
        TOP_POPULAR,
    )
}


def algorithm_named(text: str) -> Algorithm:
    """Return the built-in algorithm of this name, or a user's own that is given as ``package.module:NAME``.

    Raises
    ------
    UserError
        If there is none.
    """
    if text in ALGORITHMS:
        return ALGORITHMS[text]
    found = _own_spec(text).load()
    if not isinstance(found, Algorithm):
        raise bad_value("algorithm", text, f"an espalier.app.algorithms.Algorithm, not a {type(found).__name__}")
    return replace(found, written=text)


def algorithm_unimported(text: str) -> Algorithm:
    """Return the algorithm of a name, for one of a user's own a stand-in of that name, which trains nothing.

    Raises
    ------
    UserError
        If it is no such name.
    """
    return ALGORITHMS.get(text) or Algorithm(_own_spec(text).text, "", _make_no_edge, written=text)


def _own_spec(text: str) -> ObjectSpec:
    """Return where an algorithm of a user's own is; UserError if the text names none."""
    module, _, name = text.partition(":")
    if not (module and name.isidentifier()):
        names = f"{', '.join(map(repr, ALGORITHMS))}, or package.module:NAME of your own"
        close = difflib.get_close_matches(text, ALGORITHMS, n=1)
        raise bad_value("algorithm", text, f"{names}: did you mean {close[0]!r}?" if close else names)
    return ObjectSpec("algorithm", text, module, name, ())


def _make_no_edge(site: Site) -> NoReturn:
    raise NotImplementedError(f"{site.name}: the algorithm was not imported")
