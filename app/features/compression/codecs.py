"""The codecs that a run config can name."""

from collections.abc import Callable, Mapping
from functools import partial
from inspect import signature
from typing import Any

from espalier.app.ground.errors import bad_value
from espalier.app.ground.object_spec import ObjectSpec, parse_object
from espalier.app.ground.registered import FORM, call_with, unknown_name
from espalier.clients.shared.compression import Codec, Float16, Int8, Qsgd, TopK

NONE = "none"
CODECS: Mapping[str, Callable[..., Codec]] = {"float16": Float16, "int8": Int8, "qsgd": Qsgd, "top-k": TopK}


def parse_codec(key: str, given: Any) -> ObjectSpec:
    """Return which codec is meant: ``a-name``, ``a-name(argument=value, ...)`` or ``package.module:NAME(...)``.

    Raises
    ------
    ValueError
        If it is of no such form; the text says what is allowed.
    UserError
        For another name than those of `CODECS`, or "none".
    """
    if isinstance(given, ObjectSpec):
        return given
    if not isinstance(given, str):
        raise ValueError("a string")
    name, parenthesis, arguments = given.partition("(")
    try:
        # The built-in names have hyphens, as the settings' other values do.
        text = given if ":" in name else f"{name.replace('-', '_')}{parenthesis}{arguments}"
        module, name, parameters = parse_object(text)
    except ValueError:
        raise ValueError(f"{', '.join(map(repr, (NONE, *CODECS)))}, or {FORM}") from None
    if module:
        return ObjectSpec(key, given, module, name, parameters)
    spec = ObjectSpec(key, given, "", name.replace("_", "-"), parameters)
    if spec.name not in CODECS and given != NONE:
        raise unknown_name(spec, (NONE, *CODECS))
    return spec


def codec_of(spec: ObjectSpec) -> Codec | None:
    """Return the codec that a setting names; None for "none"; UserError if it can't be made."""
    if spec.module:
        made = call_with(spec, {})
        if not isinstance(made, Codec):
            allowed = f"what makes an espalier.clients.shared.compression.Codec, not {type(made).__name__}"
            raise bad_value(spec.key, spec.text, allowed)
        return made
    if spec.name == NONE:
        return None
    make = CODECS[spec.name]
    try:
        return make(**dict(spec.parameters))
    except (TypeError, ValueError) as error:
        known = signature(make).parameters.values()
        usual = ", ".join(f"{one.name}={one.default}" for one in known)
        example = f"{spec.name}({usual})" if usual else f"{spec.name} without arguments"
        raise bad_value(spec.key, spec.text, f"{example} or the like ({error})") from None


parse_client_codec, parse_edge_codec = partial(parse_codec, "compress.client"), partial(parse_codec, "compress.edge")
