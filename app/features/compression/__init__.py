"""Updates of whole models that go up in fewer bytes, from clients and from edges."""

from dataclasses import dataclass
from functools import partial

from espalier.app.features.case import Case
from espalier.app.features.compression import checks
from espalier.app.features.compression.codecs import codec_of
from espalier.app.features.compression.settings import Compression
from espalier.app.features.feature import Feature, MakeEdge, MakeHierarchical, Part, Scene
from espalier.clients.half import Outgoing
from espalier.clients.shared.compression import Codec
from espalier.clients.whole.compression import CompressUpdates
from espalier.strategies.compression import CompressedReplies, CompressedUplinks


def codec_of_clients(case: Case) -> Codec | None:
    """Return what writes and reads the updates of clients; None where they travel as they are, or nobody trains."""
    return codec_of(case[Compression].client) if case.algorithm.trains_clients else None


def outgoing(case: Case) -> list[Outgoing]:
    """Return what compresses clients' replies."""
    codec = codec_of_clients(case)
    return [CompressUpdates(codec)] if codec else []


def in_front(scene: Scene, make_edge: MakeEdge) -> MakeEdge:
    """Return what makes edges that get the models of their clients, whatever travels."""
    codec = codec_of_clients(scene.case)
    return (lambda name, size: CompressedReplies(make_edge(name, size), codec)) if codec else make_edge


@dataclass(frozen=True)
class CompressingEdges(Part):
    """Edges whose updates go up compressed.

    Parameters
    ----------
    codec : Codec
        Writes and reads updates.
    seed : int
        Of the run.
    """

    codec: Codec
    seed: int

    def over_edges(self, make: MakeHierarchical) -> MakeHierarchical:
        """Return what makes the cloud over them."""
        return partial(make, uplinks=CompressedUplinks(self.codec, self.seed))


def part_of(scene: Scene) -> CompressingEdges | None:
    """Return what compresses edges' updates; None where they travel as they are, or there are no edges."""
    case = scene.case
    codec = None if case.is_flat else codec_of(case[Compression].edge)
    return CompressingEdges(codec, case.seed) if codec else None


COMPRESSION = Feature(
    name="compression",
    section=Compression,
    check=checks.check,
    check_strategies=checks.check_strategies,
    without_use=checks.without_use,
    single_updates=checks.single_updates,
    outgoing=outgoing,
    in_front=in_front,
    part=part_of,
)
