"""Which client goes to which edge of the simulated radio world."""

from espalier.app.features.association import checks, placing, reports
from espalier.app.features.association.settings import Hfel
from espalier.app.features.feature import Feature

ASSOCIATION = Feature(
    name="association",
    section=Hfel,
    check=checks.check,
    without_use=checks.without_use,
    splits_edges=lambda case: case[Hfel].association != "given",
    associate=placing.associate,
    part=reports.costs_of,
    summary=reports.association_summary,
    words=reports.words,
)
