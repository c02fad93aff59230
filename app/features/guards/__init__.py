"""What one client's reply, or one edge's, may do to a model."""

from espalier.app.features.case import Case
from espalier.app.features.feature import Feature, Unused
from espalier.app.ground.errors import bad_value


def check(case: Case) -> None:
    """Refuse clipping without a bound."""
    guard = case.guard
    if guard.mode == "clip" and not (guard.update_norm or guard.activation_norm):
        raise bad_value("guard.mode", "clip", "'clip' with a bound, such as guard.update-norm = 10")


def without_use(case: Case) -> Unused:
    """Yield the bounds where nothing is measured."""
    if case.guard.mode == "off":
        yield ("guard.update-norm", "guard.activation-norm"), "guard.mode = 'off'"


GUARDS = Feature(name="guards", check=check, without_use=without_use)
