"""The features: those nearest to the clients first."""

from espalier.app.features.asynchrony import ASYNCHRONY
from espalier.app.features.feature import Feature, Part, Setting

FEATURES: tuple[Feature, ...] = (ASYNCHRONY,)


def parts_of(setting: Setting) -> list[Part]:
    """Return what the features put into a run."""
    made = (feature.part(setting) for feature in FEATURES)
    return [part for part in made if part]
