"""The settings of updates that go up in fewer bytes."""

from typing import Annotated

from pydantic import BeforeValidator

from espalier.app.features.compression.codecs import NONE, parse_client_codec, parse_edge_codec
from espalier.app.ground.object_spec import ObjectSpec
from espalier.app.settings.section import Section, Tag


class Compression(Section):
    """Updates of models that go up in fewer bytes ([compression](compression.md))."""

    name = "compress"
    tags = (Tag.TRAINS_CLIENTS,)

    client: Annotated[ObjectSpec, BeforeValidator(parse_client_codec)] = parse_client_codec(NONE)
    """What clients' updates travel as: `"none"`: as they are; `"float16"`; `"int8"`; `"qsgd(levels=7, bucket=512)"`;
    `"top-k(share=0.1)"`, with error feedback; or a codec of your own: `"package.module:NAME(...)"`.
    """
    edge: Annotated[ObjectSpec, BeforeValidator(parse_edge_codec)] = parse_edge_codec(NONE)
    """What edges' updates travel to the cloud as, likewise."""
