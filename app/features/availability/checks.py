"""What does not go together with clients that come and go, and what has no use there."""

from espalier.app.features.availability.comings import coming_and_going
from espalier.app.features.availability.settings import Availability
from espalier.app.features.case import Case
from espalier.app.features.feature import Unused
from espalier.app.ground.errors import bad_value
from espalier.app.ground.reasons import unused


def check(case: Case) -> None:
    """Refuse clients that come and go by edge rounds where every edge, or client, is in a round of its own."""
    own = case[Availability]
    if own.mode == "trace" and not own.trace:
        allowed = "the path of a CSV file client,from,to, with availability.mode = 'trace'"
        raise bad_value("availability.trace", own.trace, allowed)
    if case.out_of_step:
        why = f"{case.out_of_step}, where rounds are not everybody's"
        if own.mode != "always":
            raise bad_value("availability.mode", own.mode, f"'always' for {why}")
        if own.drop_out:
            raise bad_value("availability.drop-out", own.drop_out, f"0.0 for {why}")


def check_files(case: Case) -> None:
    """Refuse a trace that is none."""
    coming_and_going(case)


def mover(case: Case) -> tuple[str, str] | None:
    """Return the key of a file of moves, if there is one, and its value without moves."""
    return ("availability.moves", "''") if case[Availability].moves else None


def without_use(case: Case) -> Unused:
    """Return what has no use by the mode."""
    own = case[Availability]
    why = f"availability.mode = {own.mode!r}"
    return unused(
        (own.mode != "markov", ("availability.leave", "availability.back"), why),
        (own.mode != "trace", ("availability.trace",), why),
    )
