"""The whole run config: what is asked of a run, with the settings of all features and of single algorithms."""

from collections.abc import Mapping

from pydantic import Field

from espalier.app.algorithms.registry import ALGORITHMS
from espalier.app.features.case import Case
from espalier.app.features.table import FEATURES
from espalier.app.settings.section import Section


def _features() -> dict[str, Section]:
    kinds = [own.section for own in FEATURES] + [own.section for own in ALGORITHMS.values()]
    return {kind.name: kind() for kind in kinds if kind}


class RunConfig(Case):
    """All settings of a run; ``docs/configuration.md`` explains each key."""

    features: Mapping[str, Section] = Field(default_factory=_features)

    @classmethod
    def sections(cls) -> dict[str, type[Section]]:
        """Return the sections by the names of their fields, and those of features and algorithms by their own."""
        return super().sections() | {name: type(section) for name, section in _features().items()}

    @property
    def out_of_step(self) -> str:
        """Why edges, or clients, are in rounds of their own; nothing where a round is everybody's."""
        return next(filter(None, (feature.out_of_step(self) for feature in FEATURES)), "")

    @property
    def single_updates(self) -> str:
        """What needs the single updates of clients at their edge; nothing where averages are enough."""
        return next(filter(None, (feature.single_updates(self) for feature in FEATURES)), "")

    @property
    def as_sent(self) -> str:
        """Why the models of edges have to arrive as they were sent; nothing where they need not."""
        return next(filter(None, (feature.as_sent(self) for feature in FEATURES)), "")

    @property
    def movers(self) -> dict[str, str]:
        """The keys by which clients move from one edge to another, each with the value without moves."""
        of_features = (feature.mover(self) for feature in reversed(FEATURES) if self.algorithm.trains_clients)
        return dict(filter(None, of_features))

    @property
    def may_train_nobody(self) -> bool:
        """True where a run in which nobody trained is over: that nobody can take part is what it has to say."""
        return any(feature.may_leave_nobody(self) for feature in FEATURES)

    @property
    def has_whole_edges(self) -> bool:
        """True where an edge's clients are its own affair in a round, so that a worker can run it with them."""
        return super().has_whole_edges and not any(feature.splits_edges(self) for feature in FEATURES)
