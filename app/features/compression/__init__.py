"""Updates of models that go up in fewer bytes, from clients and from edges."""

from dataclasses import dataclass
from functools import partial

from espalier.app.features.case import Case
from espalier.app.features.compression import checks
from espalier.app.features.compression.codecs import codec_of
from espalier.app.features.compression.settings import Compression
from espalier.app.features.feature import Feature, MakeEdge, MakeHierarchical, Part, Scene
from espalier.clients.compression import CompressUpdates
from espalier.clients.half import Outgoing
from espalier.clients.shared.compression import Codec
from espalier.strategies.compression import CompressedReplies, CompressedUplinks, CountedUplinks, Uplinks


def codec_of_clients(case: Case) -> Codec | None:
    """Return what writes and reads the updates of clients; None where they travel as they are, or nobody has any."""
    sends_any = case.algorithm.trains_clients and not case.algorithm.sends_nothing
    return codec_of(case[Compression].client) if sends_any else None


def codec_of_edges(case: Case) -> Codec | None:
    """Return what writes and reads the updates of edges; None where they travel as they are, or there are none."""
    return None if case.is_flat or case.algorithm.sends_nothing else codec_of(case[Compression].edge)


def outgoing(case: Case) -> list[Outgoing]:
    """Return what compresses clients' replies."""
    codec = codec_of_clients(case)
    return [CompressUpdates(codec)] if codec else []


def in_front(scene: Scene, make_edge: MakeEdge) -> MakeEdge:
    """Return what makes edges that get the models of their clients, whatever travels."""
    codec = codec_of_clients(scene.case)
    return (lambda name, size: CompressedReplies(make_edge(name, size), codec)) if codec else make_edge


def uplinks(case: Case) -> Uplinks | None:
    """Return what carries the updates of edges that have hosts of their own."""
    codec = codec_of_edges(case)
    return CompressedUplinks(codec, case.seed) if codec else None


@dataclass(frozen=True)
class CompressingEdges(Part):
    """Edges whose updates go up compressed.

    Parameters
    ----------
    uplinks : Uplinks
        Carries them, or counts what has come from hosts of their own.
    """

    uplinks: Uplinks

    def over_edges(self, make: MakeHierarchical) -> MakeHierarchical:
        """Return what makes the cloud over them."""
        return partial(make, uplinks=self.uplinks)


def part_of(scene: Scene) -> CompressingEdges | None:
    """Return what compresses edges' updates; None where they travel as they are, or there are no edges."""
    case = scene.case
    if not (codec := codec_of_edges(case)):
        return None
    return CompressingEdges(CompressedUplinks(codec, case.seed) if case.here.is_whole else CountedUplinks(codec))


COMPRESSION = Feature(
    name="compression",
    section=Compression,
    check=checks.check,
    check_strategies=checks.check_strategies,
    without_use=checks.without_use,
    single_updates=checks.single_updates,
    outgoing=outgoing,
    in_front=in_front,
    uplinks=uplinks,
    part=part_of,
)
