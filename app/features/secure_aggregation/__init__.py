"""Secure aggregation within an edge: it learns the average of its clients' updates, and no single one."""

from espalier.app.features.feature import Feature
from espalier.app.features.secure_aggregation import checks, reports, tiers
from espalier.app.features.secure_aggregation.settings import Secure

SECURE_AGGREGATION = Feature(
    name="secure_aggregation",
    section=Secure,
    check=checks.check,
    check_strategies=checks.check_strategies,
    check_node=checks.check_node,
    without_use=checks.without_use,
    half=tiers.half,
    outgoing=tiers.outgoing,
    in_front=tiers.in_front,
    part=reports.part_of,
    summary=reports.summary,
    words=reports.words,
)
