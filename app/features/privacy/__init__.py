"""Differential privacy of clients, edges or examples, accounted over the rounds of a run."""

from espalier.app.features.feature import Feature
from espalier.app.features.privacy import checks, ledger, tiers
from espalier.app.features.privacy.settings import Privacy

PRIVACY = Feature(
    name="privacy",
    section=Privacy,
    check=checks.check,
    check_strategies=checks.check_strategies,
    check_model=checks.check_model,
    single_updates=checks.single_updates,
    as_sent=checks.as_sent,
    falls_short=checks.falls_short,
    without_use=checks.without_use,
    outgoing=tiers.outgoing,
    withheld=tiers.withheld,
    half=tiers.half,
    in_front=tiers.in_front,
    part=ledger.privacy_ledger_of,
    summary=ledger.privacy_summary,
    words=ledger.words,
)
