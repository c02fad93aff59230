"""What the rounds of a run release of whom, by what is told of them."""

from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from espalier.app.features.case import Case
from espalier.app.features.feature import Line, Scene
from espalier.app.features.privacy.levels import (
    is_by_cloud,
    is_central,
    of_clouds_mean,
    of_mean,
    of_step,
    of_update,
)
from espalier.app.features.privacy.releases import Release, Releases
from espalier.app.features.privacy.settings import Privacy
from espalier.app.tasks.common import local_training

ByUnit = Mapping[Hashable, Releases]
WHOLE_RUN = "run"  # the unit of releases that concern everybody


class Spending(Protocol):
    """Says what global rounds release. Who is protected is in one unit; each unit has a budget of its own."""

    def planned(self) -> ByUnit:
        """Return what a global round is to release at most."""

    def of_round(self, edges: Mapping[str, Line], told: Line) -> ByUnit:
        """Return what a round has released.

        Parameters
        ----------
        edges : Mapping[str, dict]
            By edge, of its line in ``metrics.jsonl``: ``participants``, ``failures`` and ``privacy``.
        told : dict
            Of the global line: ``privacy``.
        """


@dataclass(frozen=True)
class AtEdges:
    """Averages of clients, with noise at each edge: an edge's clients are in all of its averages, and in no others.

    Parameters
    ----------
    mean_of : Mapping[str, Release]
        What an edge releases in an edge round, if all of its clients are there.
    edge_rounds : int
        Of a global round.
    """

    mean_of: Mapping[str, Release]
    edge_rounds: int

    def planned(self) -> ByUnit:
        """Return all edge rounds of all edges."""
        return {name: {release: self.edge_rounds} for name, release in self.mean_of.items()}

    def of_round(self, edges: Mapping[str, Line], told: Line) -> ByUnit:
        """Return what edges tell of their edge rounds; one that gave no model counts as planned."""
        return {
            name: Counter(_release(one) or self.mean_of[name] for one in line["privacy"])
            for name, line in edges.items()
        }


@dataclass(frozen=True)
class AtCloud:
    """Averages of edges, with noise at the cloud.

    Parameters
    ----------
    mean : Release
        What the cloud releases in a round, if all are there.
    """

    mean: Release

    def planned(self) -> ByUnit:
        """Return one average."""
        return {WHOLE_RUN: {self.mean: 1}}

    def of_round(self, edges: Mapping[str, Line], told: Line) -> ByUnit:
        """Return what the cloud tells; nothing where it made no model, and nothing left it.

        Where edges tell of their clients, it is an average over these, drawn as at the edge with the largest share.
        """
        release = _release(told.get("mean"))
        if release is None:
            return {}
        drawn = filter(None, map(_release, (one for line in edges.values() for one in line.get("privacy", ()))))
        most = max(drawn, key=lambda own: own.share, default=release)
        return {WHOLE_RUN: {replace(release, asked=most.asked, of=most.of): 1}}


@dataclass(frozen=True)
class AtClients:
    """Updates, or steps, with noise by each client, wherever they go.

    Parameters
    ----------
    of_client : Mapping[int, Releases]
        What a client releases when it trains.
    clients_of : Mapping[str, Sequence[int]]
        By edge.
    edge_rounds : int
        Of a global round.
    """

    of_client: Mapping[int, Releases]
    clients_of: Mapping[str, Sequence[int]]
    edge_rounds: int

    def planned(self) -> ByUnit:
        """Return what all clients release in all edge rounds."""
        return {client: _times(own, self.edge_rounds) for client, own in self.of_client.items()}

    def of_round(self, edges: Mapping[str, Line], told: Line) -> ByUnit:
        """Return what those release who were told to train, whether their replies were of use or not."""
        asked = Counter(client for name, line in edges.items() for client in self._asked(name, line))
        return {client: _times(self.of_client[client], times) for client, times in asked.items()}

    def _asked(self, name: str, line: Line) -> Iterator[int]:
        """Yield who was told to train, once for each edge round; all, where nobody knows, as of a lost edge."""
        for edge_round, participants in enumerate(line["participants"], start=1):
            failed = {own["client"] for own in line["failures"] if own.get("edge_round") == edge_round}
            unknown = None in failed or not (failed or participants)
            yield from self.clients_of[name] if unknown else failed | set(participants)


def spending_of(scene: Scene, num_rounds: int) -> Spending:
    """Return what a run with differential privacy releases, with the noise of one of so many global rounds.

    Raises
    ------
    UserError
        If no noise is enough, or the accountant's package is not installed.
    """
    case = scene.case.of_rounds(num_rounds)
    sizes = {name: len(members) for name, members in scene.topology.items()}
    if is_by_cloud(case):
        return AtCloud(of_clouds_mean(case, sizes))
    if is_central(case):
        return AtEdges({name: of_mean(case, size) for name, size in sizes.items()}, case.edge_rounds)
    return AtClients(_of_clients(case, scene), scene.edges_in(1), case.edge_rounds)


def _of_clients(case: Case, scene: Scene) -> dict[int, Releases]:
    if case[Privacy].level == "client-at-client":
        update: Releases = {of_update(case): 1}
        return {profile.partition_id: update for profile in scene.profiles}
    training = local_training(case.train)
    counts = {profile.partition_id: profile.num_train_examples for profile in scene.profiles}
    return {client: {of_step(case, training, count): training.num_steps(count)} for client, count in counts.items()}


def _release(told: Line | None) -> Release | None:
    return Release(told["noise"], told["asked"], told["of"]) if told else None


def _times(releases: Releases, count: int) -> dict[Release, int]:
    return {release: own * count for release, own in releases.items()}
