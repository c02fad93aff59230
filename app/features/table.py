"""The features: what comes first is nearer to the edges' strategies, and reports first."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager

from flwr.serverapp import Grid

from espalier.app.features.association import ASSOCIATION
from espalier.app.features.asynchrony import ASYNCHRONY
from espalier.app.features.availability import AVAILABILITY
from espalier.app.features.averaging import AVERAGING
from espalier.app.features.case import Case
from espalier.app.features.compression import COMPRESSION
from espalier.app.features.data import DATA
from espalier.app.features.execution import EXECUTION
from espalier.app.features.feature import Feature, Part, Presence, Scene, Watcher
from espalier.app.features.guards import GUARDS
from espalier.app.features.hosts import HOSTS
from espalier.app.features.monitoring import MONITORING
from espalier.app.features.plans import PLANS
from espalier.app.features.privacy import PRIVACY
from espalier.app.features.seconds import SECONDS
from espalier.app.features.secure_aggregation import SECURE_AGGREGATION
from espalier.app.features.splitting import SPLITTING
from espalier.app.features.stopping import STOPPING
from espalier.clients.half import ClientHalf, Outgoing
from espalier.strategies.compression import Uplinks

FEATURES: tuple[Feature, ...] = (
    PRIVACY,  # what is decoded can be longer than what was sent, so it is clipped behind that
    COMPRESSION,  # what is behind it has whole models
    SECURE_AGGREGATION,  # what is behind it has averages; a client's update is masked last
    DATA,
    AVERAGING,
    SPLITTING,
    HOSTS,
    PLANS,
    ASSOCIATION,
    AVAILABILITY,
    ASYNCHRONY,
    EXECUTION,
    GUARDS,
    STOPPING,
    SECONDS,
    MONITORING,
)


def half_of(case: Case) -> ClientHalf:
    """Return what a run's clients do: its algorithm's half, as the features change it."""
    half = case.algorithm.client
    for feature in FEATURES:
        half = feature.half(case, half)
    return half


def outgoing_of(case: Case) -> list[Outgoing]:
    """Return what the replies of a run's clients pass on their way out."""
    return [outgoing for feature in FEATURES for outgoing in feature.outgoing(case)]


def check_node(case: Case, node_config: Mapping[str, object]) -> None:
    """Raise UserError for a run in which a client takes no part, by its node's config."""
    for feature in FEATURES:
        feature.check_node(case, node_config)


def withheld_by(case: Case) -> set[str]:
    """Return which metrics of training a run's clients do not tell."""
    return {name for feature in FEATURES for name in feature.withheld(case)}


def uplinks_of(case: Case) -> Uplinks | None:
    """Return what carries models up from edges that have hosts of their own; None: they come as they are."""
    return next(filter(None, (feature.uplinks(case) for feature in FEATURES)), None)


def parts_of(scene: Scene) -> list[Part]:
    """Return what the features put into a run, where the cloud is."""
    made = (feature.part(scene) for feature in FEATURES)
    return [part for part in made if part]


@contextmanager
def watching(case: Case, grid: Grid) -> Iterator[list[Watcher]]:
    """Return what watches a run, or an edge host, that reaches its nodes by `grid`; it is closed at the end.

    Raises
    ------
    UserError
        If something of it can't be opened.
    """
    with ExitStack() as opened:
        found = [
            opened.enter_context(feature.watch(case, lambda: len(list(grid.get_node_ids())))) for feature in FEATURES
        ]
        yield [watcher for watcher in found if watcher]


def presence_of(case: Case) -> Presence | None:
    """Return what says which clients are there; None where all are always there."""
    return next(filter(None, (feature.presence(case) for feature in FEATURES)), None)
