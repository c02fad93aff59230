"""Who clips and adds noise in a run: edges, the cloud, or clients."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
from flwr.serverapp.strategy import Strategy

from espalier.app.features.case import Case
from espalier.app.features.feature import MakeEdge, Scene
from espalier.app.features.privacy.checks import is_on
from espalier.app.features.privacy.levels import (
    is_by_cloud,
    is_by_edges,
    is_central,
    of_clouds_mean,
    of_mean,
    of_step,
    of_update,
    sampled,
)
from espalier.app.features.privacy.settings import Privacy
from espalier.clients.half import ClientHalf, Outgoing
from espalier.clients.messages.train import TRAIN, TRAIN_LOSS
from espalier.clients.shared.privacy import frozen_weights, noise_generator
from espalier.clients.task import LocalTraining
from espalier.clients.whole.privacy import PrivateSteps, PrivateUpdates, without_loss
from espalier.strategies.privacy import ASKED, PrivateCloud, PrivateMean


def in_front(scene: Scene, make_edge: MakeEdge) -> MakeEdge:
    """Return what makes edges whose averages are of clipped updates, with noise where the edges add it."""
    case = scene.case
    if not (is_on(case) and is_by_edges(case)):
        return make_edge
    own = case[Privacy]

    def make(name: str, size: int) -> PrivateMean:
        return PrivateMean(
            make_edge(name, size),
            own.clip,
            0.0 if is_by_cloud(case) else of_mean(case, size).noise,
            _draws(case, name),
            is_secret=own.secret_noise,
            largest_share=sampled(case, size) / size if own.epsilon else 1.0,
            untrained=untrained(scene),
        )

    return make


def around_cloud(scene: Scene) -> Callable[[Strategy], Strategy] | None:
    """Return what puts noise around the cloud's strategy; None where it adds none."""
    case = scene.case
    if not is_by_cloud(case):
        return None
    own, sizes = case[Privacy], {name: len(members) for name, members in scene.topology.items()}
    noise, draws = of_clouds_mean(case, sizes).noise, _draws(case, "cloud")
    cloud = partial(PrivateCloud, noise=noise, draws=draws, untrained=untrained(scene))
    if not is_by_edges(case):
        return partial(cloud, clip=own.clip, reach=lambda told: own.clip)
    fewest = min(sampled(case, size) for size in sizes.values())
    return partial(cloud, clip=0.0, reach=lambda told: own.clip / float(told[ASKED]), least_reach=own.clip / fewest)


def untrained(scene: Scene) -> set[str]:
    """Return the names of weights that no client trains, or that never leave one."""
    return frozen_weights(scene.model).union(scene.case.algorithm.client.stays(scene.model))


def outgoing(case: Case) -> list[Outgoing]:
    """Return what withholds clients' losses where they add the noise, and what clips updates and adds noise to them."""
    own = case[Privacy]
    if not is_on(case) or is_central(case):
        return []
    if own.level == "example-at-client":
        return [without_loss]
    return [without_loss, PrivateUpdates(own.clip, of_update(case).noise, own.secret_noise)]


def withheld(case: Case) -> list[str]:
    """Return the training loss where clients add the noise, for it has none."""
    return [TRAIN_LOSS] if is_on(case) and not is_central(case) else []


def half(case: Case, given: ClientHalf) -> ClientHalf:
    """Return what clients do, where each of their examples is protected in training."""
    own = case[Privacy]
    if not is_on(case) or own.level != "example-at-client":
        return given

    def noise(training: LocalTraining, num_examples: int) -> float:
        return of_step(case, training, num_examples).noise

    return replace(given, handlers={**given.handlers, TRAIN: PrivateSteps(own.clip, noise, own.secret_noise)})


def _draws(case: Case, name: str) -> Callable[[int], np.random.Generator]:
    seed = None if case[Privacy].secret_noise else case.seed
    return lambda number: noise_generator(seed, name, number)
