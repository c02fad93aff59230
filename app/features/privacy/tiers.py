"""Who clips and adds noise in a run: edges, the cloud, or clients."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from flwr.serverapp.strategy import Strategy

from espalier.app.features.case import Case
from espalier.app.features.feature import MakeEdge, Scene
from espalier.app.features.privacy.checks import is_on
from espalier.app.features.privacy.levels import is_by_cloud, is_by_edges, of_clouds_mean, of_mean, of_step, of_update
from espalier.app.features.privacy.settings import Privacy
from espalier.clients.half import ClientHalf, Outgoing
from espalier.clients.messages.train import TRAIN
from espalier.clients.shared.privacy import noise_generator
from espalier.clients.task import LocalTraining
from espalier.clients.whole.privacy import PrivateSteps, PrivateUpdates
from espalier.strategies.privacy import ASKED, PrivateCloud, PrivateMean


def in_front(scene: Scene, make_edge: MakeEdge) -> MakeEdge:
    """Return what makes edges whose averages are of clipped updates, with noise where the edges add it."""
    case = scene.case
    if not (is_on(case) and is_by_edges(case)):
        return make_edge
    own = case[Privacy]

    def make(name: str, size: int) -> PrivateMean:
        noise = 0.0 if is_by_cloud(case) else of_mean(case, size).noise
        return PrivateMean(make_edge(name, size), own.clip, noise, _draws(case, name), is_secret=own.secret_noise)

    return make


def around_cloud(scene: Scene) -> Callable[[Strategy], Strategy] | None:
    """Return what puts noise around the cloud's strategy; None where it adds none."""
    case = scene.case
    if not is_by_cloud(case):
        return None
    own, sizes = case[Privacy], {name: len(members) for name, members in scene.topology.items()}
    by_clients = is_by_edges(case)
    clip, reach = (
        (0.0, partial(_reach_of_client, own.clip)) if by_clients else (own.clip, partial(_reach_of_edge, own.clip))
    )
    noise, draws = of_clouds_mean(case, sizes).noise, _draws(case, "cloud")
    return lambda strategy: PrivateCloud(strategy, clip, noise, draws, reach)


def outgoing(case: Case) -> list[Outgoing]:
    """Return what clips clients' updates and adds noise before they leave the client."""
    own = case[Privacy]
    if not is_on(case) or own.level != "client-at-client":
        return []
    return [PrivateUpdates(own.clip, of_update(case).noise, own.secret_noise)]


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


def _reach_of_edge(clip: float, told: Mapping[str, Any]) -> float:
    return clip


def _reach_of_client(clip: float, told: Mapping[str, Any]) -> float:
    return clip / float(told[ASKED])
