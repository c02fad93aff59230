"""Who is protected in a run, what is released of them, and how much noise there is at it."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from espalier.app.features.case import Case
from espalier.app.features.privacy.releases import Release
from espalier.app.features.privacy.settings import Privacy
from espalier.app.ground.errors import bad_value
from espalier.app.ground.registered import load_built_in
from espalier.clients.task import LocalTraining
from espalier.strategies.randomness import sample_size

PLACE = "espalier.app.features.privacy.accounting"
INSTALL = "'espalier-fl[privacy]'"


def accounting(case: Case, name: str) -> Any:
    """Return a function of the accountant's; UserError if its package is not installed."""
    return load_built_in(f"{PLACE}:{name}", "privacy.level", case[Privacy].level, "dp_accounting", INSTALL)


def with_noise(case: Case, release: Release, count: int) -> Release:
    """Return a release with the noise multiplier of a run, which the budget decides where the settings leave it open.

    Parameters
    ----------
    case : Case
        The run.
    release : Release
        What is released of somebody each time; its noise does not matter.
    count : int
        How often in the whole run.

    Raises
    ------
    UserError
        If no noise is enough, or the accountant's package is not installed.
    """
    own = case[Privacy]
    if own.noise or not own.epsilon:
        return replace(release, noise=own.noise)
    try:
        found = accounting(case, "noise_within")(own.epsilon, own.delta, release, count)
    except ValueError as error:
        raise bad_value("privacy.epsilon", own.epsilon, f"a larger one: {error}") from None
    return replace(release, noise=float(found))


def sampled(case: Case, size: int) -> int:
    """Return how many of an edge's clients train in a round, as Flower's strategies sample them."""
    return sample_size(size, case.federation.participation)


def of_mean(case: Case, size: int) -> Release:
    """Return what an edge with so many clients releases by an average."""
    return with_noise(case, Release(0.0, sampled(case, size), size), case.edge_rounds_in_all)


def of_clouds_mean(case: Case, sizes: Mapping[str, int]) -> Release:
    """Return what the cloud releases by an average over edges, or over the clients of all, of so many each."""
    if case[Privacy].level == "edge-at-cloud":
        one = Release(0.0, len(sizes), len(sizes))
    else:
        one = max((Release(0.0, sampled(case, size), size) for size in sizes.values()), key=lambda own: own.share)
    return with_noise(case, one, case.federation.global_rounds)


def of_update(case: Case) -> Release:
    """Return what a client releases by an update with noise."""
    return with_noise(case, Release(0.0), case.edge_rounds_in_all)


def of_step(case: Case, training: LocalTraining, num_examples: int) -> Release:
    """Return what a client with so many examples releases by a step of DP-SGD."""
    one = Release(0.0, min(training.batch_size, num_examples), num_examples, poisson=True)
    return with_noise(case, one, case.edge_rounds_in_all * training.num_steps(num_examples))


def is_central(case: Case) -> bool:
    """Return whether noise is added to an average, not by each client."""
    return not case[Privacy].level.endswith("-at-client")


def is_by_edges(case: Case) -> bool:
    """Return whether whoever averages clients' models clips their updates."""
    return case[Privacy].level in ("client-at-edge", "client-at-cloud")


def is_by_cloud(case: Case) -> bool:
    """Return whether the cloud adds noise to an average over edges."""
    return case[Privacy].level.endswith("-at-cloud") and not case.is_flat
