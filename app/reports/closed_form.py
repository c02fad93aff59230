"""The payload that the PHSFL paper's eq. 17 gives for a run, to set beside the bytes that were measured."""

from collections.abc import Iterable, Mapping, Sequence
from math import ceil, prod
from statistics import fmean
from typing import Any

from torch import nn

from espalier.app.config.sections import VIDEO_CACHING, RunConfig
from espalier.app.tasks.family import family
from espalier.app.work import num_values
from espalier.strategies import Profile
from espalier.strategies.split.edges import cut_shapes
from espalier.strategies.split.theory import phi_hfl, phi_phsfl


def has_closed_form(config: RunConfig) -> bool:
    """Return whether eq. 17 is for such a run: plans don't change cuts and local rounds, and the data don't grow."""
    return config.is_split and not config.is_planned and config.data.dataset != VIDEO_CACHING


def closed_form_bits(config: RunConfig, model: nn.Sequential, profiles: Sequence[Profile]) -> dict[str, float]:
    """Return the payload of a client in an edge round, in bits and mean over clients.

    The paper counts 33 bits a value and both directions; ``phi_phsfl`` is for the split model, ``phi_hfl`` for the
    whole one. The statistics of BatchNorm, which the paper's models lack, count as parameters: they travel as well.
    """
    shapes = cut_shapes(model, family(config).input_shape(config))
    bits = []
    for profile in profiles:
        cut, samples = (
            config.split.cut_layer.numbers[profile.partition_id % len(config.split.cut_layer.numbers)],
            profile.num_train_examples,
        )
        n_batches = config.train.batches_per_epoch or ceil(samples / config.train.batch_size)
        bits.append(
            phi_phsfl(
                kappa_0=config.train.local_epochs,
                n_batches=n_batches,
                N=config.train.batch_size,
                Z_c=prod(shapes[cut]),
                Z_0=num_values(model[:cut]),
                D_u=samples,
            )
        )
    return {"phi_phsfl": fmean(bits), "phi_hfl": float(phi_hfl(Z=num_values(model)))}


def closed_form_bytes(lines: Iterable[Mapping[str, Any]]) -> float | None:
    """Return the bytes of all edge rounds by the closed form: ``phi_phsfl / 8`` for each client that took part in each.

    Parameters
    ----------
    lines : Iterable[dict]
        The lines of ``metrics.jsonl``.

    Returns
    -------
    float, optional
        None if no global line has ``closed_form_bits``.
    """
    bits, participations = None, 0
    for line in lines:
        if line["scope"] == "global":
            bits = line.get("closed_form_bits", bits)
        elif line["scope"] == "edge":
            participations += sum(map(len, line["participants"]))
    return bits and bits["phi_phsfl"] / 8 * participations
