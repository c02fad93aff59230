"""The payload that the PHSFL paper's eq. 17 gives for a run, to set beside the bytes that were measured."""

from collections.abc import Iterable, Mapping, Sequence
from math import prod
from statistics import fmean
from typing import Any

from torch import nn

from espalier.app.planning.work import num_values
from espalier.app.settings.sections import TrainSettings
from espalier.clients.shared.cut import part_of
from espalier.clients.task import batches_of_a_pass
from espalier.strategies import Profile
from espalier.strategies.split.shapes import cut_shapes
from espalier.strategies.split.theory import phi_hfl, phi_phsfl


def closed_form_bits(
    model: nn.Sequential,
    example: Any,
    cuts: Sequence[int],
    train: TrainSettings,
    profiles: Sequence[Profile],
) -> dict[str, float]:
    """Return the payload of a client in an edge round, in bits and mean over clients.

    The paper counts 33 bits a value and both directions; ``phi_phsfl`` is for the split model, ``phi_hfl`` for the
    whole one. The statistics of BatchNorm, which the paper's models lack, count as parameters: they travel as well.
    The formula is for runs without plans, which change cuts and local rounds, and for data that don't grow.
    """
    shapes = cut_shapes(model, example)
    bits = []
    for profile in profiles:
        cut, samples = cuts[profile.partition_id % len(cuts)], profile.num_train_examples
        n_batches = train.batches_per_epoch or batches_of_a_pass(samples, train.batch_size, drop_last=train.drop_last)
        bits.append(
            phi_phsfl(
                kappa_0=train.local_epochs,
                n_batches=n_batches,
                N=train.batch_size,
                Z_c=prod(shapes[cut]),
                Z_0=num_values(part_of(model, 0, cut)),
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
