"""The budget of a run: what was spent of it, what is reported, and when it ends the run."""

import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

from flwr.serverapp.strategy import Strategy

from espalier.app.features.feature import Line, MakeHierarchical, Part, RoundOver, Scene
from espalier.app.features.privacy.checks import is_on
from espalier.app.features.privacy.levels import accounting, is_by_edges
from espalier.app.features.privacy.releases import Release, Releases
from espalier.app.features.privacy.settings import Privacy
from espalier.app.features.privacy.spending import ByUnit, Spending, spending_of
from espalier.app.features.privacy.tiers import around_cloud
from espalier.app.ground.errors import bad_value
from espalier.strategies import EdgeOutcome, Round
from espalier.strategies.outcomes import failures_as_data
from espalier.strategies.privacy import ASKED, NOISE, OF

Spent = dict[Hashable, Counter[Release]]


@dataclass
class PrivacyLedger(Part):
    """Counts what a run releases, and tells epsilon of the unit that has spent most.

    Parameters
    ----------
    own : Privacy
        The settings.
    spending_for : Callable[[int], Spending]
        Returns what says what rounds release, where the noise is that of a run of so many global rounds.
    num_rounds : int
        Global rounds of this run.
    epsilon_of : Callable[[Mapping[Release, int], float], float]
        The accountant.
    client_of : Mapping[int, int]
        Client number by node id.
    tells_edges : bool
        Edges tell of their averages.
    cloud : Callable[[Strategy], Strategy], optional
        Puts noise around the cloud's strategy. None: the cloud adds none.
    """

    own: Privacy
    spending_for: Callable[[int], Spending]
    num_rounds: int
    epsilon_of: Callable[[Releases, float], float]
    client_of: Mapping[int, int]
    tells_edges: bool
    cloud: Callable[[Strategy], Strategy] | None
    spent: Spent = field(default_factory=dict, init=False)
    again: int = field(default=0, init=False)

    def over_edges(self, make: MakeHierarchical) -> MakeHierarchical:
        """Return what makes the cloud over edges, with noise where it adds some."""
        around = self.cloud
        if around is None:
            return make
        return lambda strategy, *rest, **options: make(around(strategy), *rest, **options)

    def go_on_from(self, lines: Sequence[Line]) -> None:
        """Take back what the rounds before have spent, with the noise that they had.

        Where noise follows no seed, the round that was interrupted is repeated with other noise: it counts twice, at
        the least noise that it can have had.
        """
        edges: dict[str, Line] = {}
        fewest = self.num_rounds
        for line in lines:
            if line["scope"] == "edge":
                edges[line["edge"]] = line
            elif line["scope"] == "global":
                planned = line["privacy"].get("planned_rounds", self.num_rounds)
                self.spent = _sum(self.spent, self.spending_for(planned).of_round(edges, line["privacy"]))
                fewest = min(fewest, planned)
                self.again, edges = line["privacy"].get("repeated", 0), {}
        self.again += self.own.secret_noise
        for _ in range(self.again):
            self.spent = _sum(self.spent, self.spending_for(fewest).planned())

    @property
    def spending(self) -> Spending:
        """What rounds release from now on."""
        return self.spending_for(self.num_rounds)

    def check_first_round(self) -> None:
        """Refuse noise with which no round can be made."""
        own, first = self.own, self._epsilon(self.spending.planned())
        if 0 < own.epsilon < first:
            raise bad_value("privacy.noise", own.noise, f"more: the first round would spend an epsilon of {first:.4g}")

    def ends(self, outcome: Round) -> str:
        """Return that the budget does not allow for another round; nothing where it does, or there is none."""
        return self._why_no_more(self._after(outcome))

    def is_over(self) -> str:
        """Return the same of the rounds before, with those that may have been made twice."""
        return self._why_no_more(self.spent)

    def _why_no_more(self, spent: Spent) -> str:
        if not self.own.epsilon:
            return ""
        epsilon, following = self._epsilon(spent), self._epsilon(_sum(spent, self.spending.planned()))
        if following <= self.own.epsilon:
            return ""
        key = f"privacy.epsilon = {self.own.epsilon:g}"
        return f"{key}: {epsilon:.4g} is spent, and another round would make it {following:.4g}"

    def of_edge(self, name: str, over: RoundOver) -> Line:
        """Return ``privacy``: of each edge round how many clients were ``asked``, ``of`` how many, with what ``noise``.

        None for one without a model.
        """
        return {"privacy": _means(over.outcome.edges[name])} if self.tells_edges else {}

    def end_round(self, over: RoundOver) -> Line:
        """Return ``privacy``, and why the run ``ends``.

        It has ``level``, ``epsilon`` (None: infinite), ``delta``, and where the budget decides on the noise the
        ``planned_rounds`` that it is for.
        """
        self.spent = self._after(over.outcome)
        ends = self._why_no_more(self.spent)
        epsilon = self._epsilon(self.spent)
        told = {
            "level": self.own.level,
            "epsilon": epsilon if math.isfinite(epsilon) else None,
            "delta": self.own.delta,
        }
        if self.own.epsilon and not self.own.noise:
            told["planned_rounds"] = self.num_rounds
        repeated = {"repeated": self.again} if self.again else {}
        return {"privacy": {**told, **self._of_cloud(over.outcome), **repeated}, **({"ends": ends} if ends else {})}

    def _after(self, outcome: Round) -> Spent:
        edges = {name: self._told(edge) for name, edge in outcome.edges.items()}
        return _sum(self.spent, self.spending.of_round(edges, self._of_cloud(outcome)))

    def _of_cloud(self, outcome: Round) -> Line:
        """Return ``mean``: what the cloud's average tells of itself, where it has noise."""
        mean = _mean(outcome.train_metrics) if self.cloud else None
        return {"mean": mean} if mean else {}

    def _told(self, edge: EdgeOutcome) -> Line:
        """Return what an edge's line says, as far as it is of use here."""
        client_of = self.client_of
        return {
            "participants": [[client_of[node_id] for node_id in update.participants] for update in edge.updates],
            "failures": [
                {"edge_round": e, "client": client}
                for e, update in enumerate(edge.updates, start=1)
                for client, _ in failures_as_data(update.failures, client_of)
            ],
            "privacy": _means(edge),
        }

    def _epsilon(self, spent: ByUnit) -> float:
        different = {frozenset(releases.items()) for releases in spent.values()}
        return max((self.epsilon_of(dict(releases), self.own.delta) for releases in different), default=0.0)


def privacy_ledger_of(scene: Scene) -> PrivacyLedger | None:
    """Return what counts a run's releases; None where nobody is protected.

    Raises
    ------
    UserError
        If the first round would spend more than there is, or the accountant's package is not installed.
    """
    case = scene.case
    if not is_on(case):
        return None
    epsilon_of = accounting(case, "epsilon_of")
    ledger = PrivacyLedger(
        case[Privacy],
        cache(partial(spending_of, scene)),
        case.federation.global_rounds,
        epsilon_of,
        scene.client_of,
        is_by_edges(case),
        around_cloud(scene),
    )
    ledger.check_first_round()
    return ledger


def _means(edge: EdgeOutcome) -> list[Line | None]:
    return [_mean(update.metrics) if update.arrays is not None else None for update in edge.updates]


def _mean(metrics: Mapping[str, Any] | None) -> Line | None:
    if not metrics or ASKED not in metrics:
        return None
    return {"asked": metrics[ASKED], "of": metrics[OF], "noise": metrics[NOISE]}


def _sum(spent: Spent, more: ByUnit) -> Spent:
    return {**spent, **{unit: spent.get(unit, Counter()) + Counter(own) for unit, own in more.items()}}


def privacy_summary(lines: Sequence[Line]) -> Line:
    """Return ``privacy`` of the last round; nothing for a run where nobody is protected."""
    told = [line["privacy"] for line in lines if line["scope"] == "global" and "privacy" in line]
    return {"privacy": {key: told[-1][key] for key in ("level", "epsilon", "delta")}} if told else {}


def words(summary: Mapping[str, Any]) -> Iterator[str]:
    """Yield what the table at the end of a run says of it."""
    if own := summary.get("privacy"):
        epsilon = own["epsilon"]
        spent = "nobody: there is no noise" if epsilon is None else f"epsilon {epsilon:.4g} at delta {own['delta']:g}"
        yield f"protected ({own['level']}): {spent}"
