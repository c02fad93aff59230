"""What does not go together with compressed updates, and where they have no use."""

from espalier.app.features.case import Case
from espalier.app.features.compression.codecs import NONE, codec_of
from espalier.app.features.compression.settings import Compression
from espalier.app.features.feature import Unused
from espalier.app.ground.errors import bad_value
from espalier.app.ground.object_spec import ObjectSpec
from espalier.app.ground.reasons import first_reason
from espalier.strategies.flower_strategies import CLIPPED_BY_CLIENTS

FORGETFUL = "an edge on a host of its own keeps nothing between rounds, such as what a codec left out"


def check(case: Case) -> None:
    """Refuse codecs that can't be made, and those where no models go up that a receiver knows the start of."""
    own = case[Compression]
    for spec, why in ((own.client, _why_not_clients(case)), (own.edge, _why_not_edges(case))):
        if codec_of(spec) and why:
            raise _refused(spec, why)


def check_strategies(case: Case) -> None:
    """Refuse codecs where clients clip for a strategy, whose noise is for no longer updates than theirs."""
    client = case[Compression].client
    for spec in case.strategies_here if codec_of(client) else ():
        if spec == case.answered and spec.has_any(CLIPPED_BY_CLIENTS):
            raise _refused(client, f"{spec.key} = {spec.text!r}, for which clients clip: what is decoded may be longer")


def without_use(case: Case) -> Unused:
    """Yield what is for edges that there are none of, and for updates that nobody sends."""
    algorithm = case.algorithm
    if case.is_flat and algorithm.trains_clients:
        yield ("compress.edge",), f"algorithm = {algorithm.text!r} has no edges"
    if algorithm.sends_nothing:
        yield ("compress.client",), f"clients of algorithm = {algorithm.text!r} send no updates"
        if not case.is_flat:
            yield ("compress.edge",), f"edges of algorithm = {algorithm.text!r} have no updates"


def single_updates(case: Case) -> str:
    """Return that edges decode single updates; nothing where these come as they are."""
    client = case[Compression].client
    return f"compress.client = {client.text!r}, which edges decode" if codec_of(client) else ""


def _why_not_clients(case: Case) -> str:
    name = f"algorithm = {case.algorithm.text!r}"
    return first_reason(
        (not case.algorithm.trains_clients, ""),  # it has no use then, which is said elsewhere
        (case.algorithm.freezes_head and not case.split.tail_layer.is_none, f"{name}, whose tail keeps its weights"),
        (case.algorithm.adds_gradients, f"{name}, whose clients send gradients"),
        (case.rule, "plans, which count the bits of whole models"),
    )


def _why_not_edges(case: Case) -> str:
    codec = codec_of(case[Compression].edge)
    keeps = codec is not None and codec.keeps_errors
    return first_reason(
        (keeps and not case.here.is_whole, f"deploy.role = {case.deploy.role!r}: {FORGETFUL}"),
        (case.out_of_step, f"{case.out_of_step}, where edges may be in rounds of their own"),
        (case.as_sent, case.as_sent),
    )


def _refused(spec: ObjectSpec, why: str) -> Exception:
    return bad_value(spec.key, spec.text, f"{NONE!r} for {why}")
