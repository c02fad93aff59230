"""Clients that come and go, or move to another edge, in a simulation of them."""

from espalier.app.features.availability import checks, comings, reports
from espalier.app.features.availability.settings import Availability
from espalier.app.features.feature import Feature

AVAILABILITY = Feature(
    name="availability",
    section=Availability,
    check=checks.check,
    check_files=checks.check_files,
    without_use=checks.without_use,
    mover=checks.mover,
    topology_of=comings.moves_of,
    may_leave_nobody=lambda case: case[Availability].comes_and_goes,
    presence=comings.coming_and_going,
    in_front=comings.in_front,
    part=reports.attendances_of,
    summary=reports.availability_summary,
    words=reports.words,
    states=reports.states,
)
