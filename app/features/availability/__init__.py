"""Clients that come and go, or move to another edge, in a simulation of them."""

from espalier.app.features.availability.checks import check, check_files, mover, without_use
from espalier.app.features.availability.comings import coming_and_going, in_front, moves_of
from espalier.app.features.availability.reports import attendances_of, availability_summary, words
from espalier.app.features.availability.settings import Availability
from espalier.app.features.feature import Feature

AVAILABILITY = Feature(
    name="availability",
    section=Availability,
    check=check,
    check_files=check_files,
    without_use=without_use,
    mover=mover,
    topology_of=moves_of,
    may_leave_nobody=lambda case: case[Availability].comes_and_goes,
    presence=coming_and_going,
    in_front=in_front,
    part=attendances_of,
    summary=availability_summary,
    words=words,
)
