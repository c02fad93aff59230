"""The algorithms by name, and those of a user's own."""

from typing import NoReturn

from espalier.app.algorithms.algorithm import Algorithm, Site
from espalier.app.algorithms.apfl import APFL
from espalier.app.algorithms.centralised import CENTRALISED
from espalier.app.algorithms.cse_fsl import CSE_FSL
from espalier.app.algorithms.decoupled import DECOUPLED
from espalier.app.algorithms.ditto import DITTO
from espalier.app.algorithms.fedavg import FEDAVG
from espalier.app.algorithms.fedavg_ub import FEDAVG_UB
from espalier.app.algorithms.fedbabu import FEDBABU
from espalier.app.algorithms.feddyn import FEDDYN
from espalier.app.algorithms.fednova import FEDNOVA
from espalier.app.algorithms.fedper import FEDPER
from espalier.app.algorithms.fedrep import FEDREP
from espalier.app.algorithms.fsl_sage import FSL_SAGE
from espalier.app.algorithms.h_fedavg import H_FEDAVG
from espalier.app.algorithms.h_fedavg_m1 import H_FEDAVG_M1
from espalier.app.algorithms.h_fedavg_m2 import H_FEDAVG_M2
from espalier.app.algorithms.h_fedavg_ub import H_FEDAVG_UB
from espalier.app.algorithms.hsfl import HSFL
from espalier.app.algorithms.hsfl_feddyn import HSFL_FEDDYN
from espalier.app.algorithms.hsfl_scaffold import HSFL_SCAFFOLD
from espalier.app.algorithms.local import LOCAL
from espalier.app.algorithms.mtgc import MTGC
from espalier.app.algorithms.pfedme import PFEDME
from espalier.app.algorithms.phsfl import PHSFL
from espalier.app.algorithms.rawhfl import RAWHFL
from espalier.app.algorithms.scaffold import SCAFFOLD
from espalier.app.algorithms.sfl_v1 import SFL_V1
from espalier.app.algorithms.sfl_v2 import SFL_V2
from espalier.app.algorithms.sl import SL
from espalier.app.algorithms.top_popular import TOP_POPULAR
from espalier.app.ground.registered import own_spec, value_named

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
        CSE_FSL,
        FSL_SAGE,
        DECOUPLED,
        SCAFFOLD,
        HSFL_SCAFFOLD,
        FEDDYN,
        HSFL_FEDDYN,
        FEDNOVA,
        MTGC,
        FEDPER,
        FEDREP,
        FEDBABU,
        DITTO,
        APFL,
        PFEDME,
        LOCAL,
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
    """Return the built-in algorithm of this name, or a user's own; UserError if there is none."""
    return value_named("algorithm", text, ALGORITHMS, Algorithm)


def algorithm_unimported(text: str) -> Algorithm:
    """Return the algorithm of a name, for one of a user's own a stand-in of that name, which trains nothing.

    Raises
    ------
    UserError
        If it is no such name.
    """
    found = ALGORITHMS.get(text)
    return found or Algorithm(own_spec("algorithm", text, ALGORITHMS).text, "", _make_no_edge, written=text)


def _make_no_edge(site: Site) -> NoReturn:
    raise NotImplementedError(f"{site.name}: the algorithm was not imported")
