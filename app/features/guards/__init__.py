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


def single_updates(case: Case) -> str:
    """Return that the lengths of single updates are compared; nothing where there is no bound of their own."""
    bound = case.guard.update_norm if case.guard.mode != "off" else 0.0
    return f"guard.update-norm = {bound:g}, which compares single updates" if bound else ""


GUARDS = Feature(name="guards", check=check, without_use=without_use, single_updates=single_updates)
