"""What all sections of the run config have in common."""

from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """Settings that belong together, with a docstring for each, which ``--help`` prints.

    A setting's key is ``name.the-setting``; those in `flat`, which many command lines name, are written without the
    name of the section. Settings that are text in a special form hold what was parsed, with the `text` as typed.

    Attributes
    ----------
    name : str
        Of the section.
    flat : tuple[str, ...]
        Fields whose keys have no prefix.
    """

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,
        allow_inf_nan=False,
        arbitrary_types_allowed=True,
        use_attribute_docstrings=True,
    )
    name: ClassVar[str]
    flat: ClassVar[tuple[str, ...]] = ()

    @classmethod
    def keys(cls) -> dict[str, str]:
        """Return the key of every field, as a user types it."""
        prefix = f"{cls.name}."
        return {field: ("" if field in cls.flat else prefix) + field.replace("_", "-") for field in cls.model_fields}

    def as_dict(self) -> dict[str, Any]:
        """Return the settings by key, as a user types them."""
        values = {key: getattr(self, field) for field, key in self.keys().items()}
        return {key: getattr(value, "text", value) for key, value in values.items()}
