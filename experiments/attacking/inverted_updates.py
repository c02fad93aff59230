"""What an edge rebuilds of the images behind the update that it gets, by defence."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from experiments.attacking.inversion import SEARCH, Search, flat, input_of_linear, inverted, label_of_one
from experiments.attacking.likeness import likeness, matched
from experiments.attacking.records import Measured, Pictures
from experiments.attacking.updates import Victim, rounds_of

INVERSION, LINEAR = "gradient inversion", "linear layer"
LINEAR_MODEL, SMALL_CNN = "experiments.private_tiers:linear", "small-cnn"
RATE = 0.1
RUN: dict[str, Any] = {
    "engine": "in-process",
    "algorithm": "fedavg",
    "num-clients": 8,
    "partition": "iid",
    "local-epochs": 1,
    "learning-rate": RATE,
    "train.weighting": "equal",
}
LABEL = "label found"
# Update and gradient have about this length in a step on one image.
BY_CLIENT = {"privacy.level": "client-at-client", "privacy.clip": RATE}
BY_EXAMPLE = {"privacy.level": "example-at-client", "privacy.clip": 1.0}


@dataclass(frozen=True)
class Defence:
    """What stands between a client's images and what the edge gets.

    Parameters
    ----------
    name : str
        As tables have it.
    settings : Mapping[str, Any] (default: none)
        Of the run, by their keys.
    summed : int (default: 1)
        The edge gets the mean of so many clients' updates, as with secure aggregation.
    in_part : bool (default: False)
        Numbers of an update that are 0 were not sent, and say nothing.
    """

    name: str
    settings: Mapping[str, Any] = field(default_factory=dict, hash=False)
    summed: int = 1
    in_part: bool = False


NONE = Defence("none")
SUMMED = Defence("mean of 4 clients", summed=4)
NOISES = (0.01, 0.1, 1.0)
DEFENCES = (
    NONE,
    Defence("`compress.client=int8`", {"compress.client": "int8"}),
    Defence("`compress.client=top-k(share=0.1)`", {"compress.client": "top-k(share=0.1)"}, in_part=True),
    SUMMED,
    *(Defence(f"`client-at-client`, noise {z:g}", {**BY_CLIENT, "privacy.noise": z}) for z in NOISES),
    *(Defence(f"`example-at-client`, noise {z:g}", {**BY_EXAMPLE, "privacy.noise": z}) for z in NOISES),
)


@dataclass(frozen=True)
class Setting:
    """What a client trains in the round, and how many are attacked.

    Parameters
    ----------
    model : str
        ``model`` of the run.
    batch : int
        Images of a mini-batch.
    steps : int
        Local steps.
    images : int
        Images that are rebuilt, of all victims together.
    defences : tuple[Defence, ...]
        Those that it is measured with.
    """

    model: str
    batch: int
    steps: int
    images: int
    defences: tuple[Defence, ...]

    @property
    def name(self) -> str:
        """As the CSV has it."""
        model = "linear" if self.model == LINEAR_MODEL else self.model
        steps = f", {self.steps} steps" if self.steps > 1 else ""
        return f"{model}, {self.batch} image{'s' * (self.batch > 1)}{steps}"

    @property
    def attack(self) -> str:
        """What is tried."""
        return LINEAR if self.model == LINEAR_MODEL else INVERSION


# Those whose noise, if any, is least: more noise hides single images already.
WEAKEST = tuple(one for one in DEFENCES if one.settings.get("privacy.noise", 0.0) <= min(NOISES))
SETTINGS = (
    Setting(LINEAR_MODEL, 1, 1, 4, DEFENCES),
    Setting(SMALL_CNN, 1, 1, 4, DEFENCES),
    Setting(SMALL_CNN, 4, 1, 12, WEAKEST),
    Setting(SMALL_CNN, 16, 1, 16, (NONE,)),
    Setting(SMALL_CNN, 4, 4, 16, (NONE,)),
)


@dataclass(frozen=True)
class Seen:
    """What the edge has of one or of several clients together.

    Parameters
    ----------
    defence : Defence
        What stood before it.
    victims : Sequence[Victim]
        Whose updates were averaged, one where nothing is.
    """

    defence: Defence
    victims: Sequence[Victim]

    @property
    def update(self) -> dict[str, Tensor]:
        """The mean of their updates."""
        updates = [victim.update for victim in self.victims]
        return {name: torch.stack([one[name] for one in updates]).mean(0) for name in updates[0]}

    @property
    def images(self) -> Tensor:
        """All their images."""
        return torch.cat([victim.images for victim in self.victims])

    @property
    def labels(self) -> Tensor:
        """Theirs, of shape (steps, N): of clients that are averaged as if they were one."""
        steps = len(self.victims[0].batches)
        return torch.cat([victim.labels.view(steps, -1) for victim in self.victims], dim=1)


def seen_of(setting: Setting, defence: Defence, seed: int, images: int) -> list[Seen]:
    """Return what the edge gets: updates of mini-batches of the setting's size, which Poisson samples have at times."""
    config = {**RUN, "model": setting.model, "seed": seed, "batch-size": setting.batch}
    config |= {"batches-per-epoch": setting.steps, **defence.settings}
    fitting = (v for v in rounds_of(config) if [len(b) for b in v.batches] == [setting.batch] * setting.steps)
    number = max(images // (setting.batch * setting.steps), defence.summed)
    found = list(islice(fitting, number))
    return [Seen(defence, found[i : i + defence.summed]) for i in range(0, number, defence.summed)]


def by_linear_layer(seen: Seen, prepared: tuple[Tensor, Tensor]) -> Tensor:
    """Return the one image that a linear model's update gives; of several clients a mixture, for each of them."""
    weight, bias = seen.update.values()
    scale, shift = prepared
    image = (input_of_linear(weight, bias).view(1, 1, 8, 8) - shift) / scale
    return image.clamp(0, 1).expand(len(seen.images), -1, -1, -1)


def by_search(
    all_seen: Sequence[Seen], prepared: tuple[Tensor, Tensor], mean: Tensor, search: Search, seed: int
) -> Tensor:
    """Return the images that are found for updates of mini-batches of one size; the label of one image is found too."""
    victim = all_seen[0].victims[0]
    updates = torch.stack([flat(seen.update, victim.before) for seen in all_seen])
    labels = torch.stack([guessed_labels(seen) for seen in all_seen])
    scale, shift = prepared
    return inverted(
        victim.task.model,
        victim.before,
        updates,
        labels,
        lambda images: images * scale + shift,
        RATE,
        mean,
        sent=torch.stack(
            [
                update != 0 if seen.defence.in_part else torch.ones_like(update, dtype=torch.bool)
                for seen, update in zip(all_seen, updates, strict=True)
            ]
        ),
        search=search,
        seed=seed,
    )


def guessed_labels(seen: Seen) -> Tensor:
    """Return the labels that the edge goes by: of a single image what its update says, of more images the true ones."""
    if seen.labels.numel() > 1:
        return seen.labels
    return torch.full_like(seen.labels, label_of_one(list(seen.update.values())[-1]))


def prepared_by(victim: Victim) -> tuple[Tensor, Tensor]:
    """Return scale and shift of what the model takes, by pixels from 0 to 1: statistics of all data, no secret."""
    black, white = (victim.task.prepare(torch.full((1, 1, 1, 1), n, dtype=torch.uint8)) for n in (0, 255))
    return white - black, black


def mean_image(victim: Victim) -> Tensor:
    """Return the mean of images that no client trains on, of shape (1, C, H, W)."""
    images: Tensor = victim.task.test.inputs
    return (images.to(torch.float32) / 255).mean(0, keepdim=True)


def measured(
    seed: int, settings: Sequence[Setting] = SETTINGS, search: Search = SEARCH
) -> Iterator[Measured | Pictures]:
    """Return what is rebuilt in each setting with each defence, and what the mean image is like.

    Updates that hold equally many images are searched side by side, whatever their defences.
    """
    for setting in settings:
        everything = [seen for one in setting.defences for seen in seen_of(setting, one, seed, setting.images)]
        victim = everything[0].victims[0]
        prepared, mean = prepared_by(victim), mean_image(victim)
        for size in dict.fromkeys(len(seen.images) for seen in everything):
            alike = [seen for seen in everything if len(seen.images) == size]
            if setting.attack == LINEAR:
                rebuilt = torch.stack([by_linear_layer(seen, prepared) for seen in alike])
            else:
                rebuilt = by_search(alike, prepared, mean[0], search, seed)
            for defence in dict.fromkeys(seen.defence for seen in alike):
                own = [(seen, images) for seen, images in zip(alike, rebuilt, strict=True) if seen.defence == defence]
                yield from _figures(setting, defence, own, mean)


def _figures(
    setting: Setting, defence: Defence, own: Sequence[tuple[Seen, Tensor]], mean: Tensor
) -> Iterator[Measured | Pictures]:
    where = (setting.attack, setting.name, defence.name)
    true = torch.cat([seen.images for seen, _ in own])
    found = torch.cat([matched(images, seen.images) for seen, images in own])
    beside = likeness(mean.expand_as(true), true)
    for measure, value in likeness(found, true).items():
        yield Measured(*where, measure, value, beside[measure], len(true))
    if own[0][0].labels.numel() == 1:
        hits = [float(guessed_labels(seen) == seen.labels) for seen, _ in own]
        yield Measured(*where, LABEL, sum(hits) / len(hits), 0.1, len(hits))
    yield Pictures(*where, true, found)
