"""The tables of what attacks find, as they are in docs/attacks.md: means over seeds."""

from collections.abc import Callable, Sequence
from statistics import fmean

from espalier.app.features.privacy.accounting import epsilon_of
from espalier.app.features.privacy.releases import Release
from experiments import privacy
from experiments.attacking import hijack, inverted_updates, noisy_cut
from experiments.attacking.likeness import PSNR, SSIM
from experiments.attacking.records import Row

DELTA = 1e-5
IMAGES = 180  # of a client, of which a step of DP-SGD takes one
LEAKS = {measure: title for *what, title in privacy.MEASURES for measure in [", ".join(what)]}


def mean_of(rows: Sequence[Row], column: str = "value", **where: object) -> float:
    """Return the mean over seeds of the figure that some columns name; NaN where there is none."""
    own = [row[column] for row in rows if all(row[key] == value for key, value in where.items())]
    return fmean(own) if own else float("nan")


def like(rows: Sequence[Row], column: str = "value", **where: object) -> str:
    """Return how like rebuilt images are, as cells have it; a dash where it was not measured."""
    ratio, similarity = (mean_of(rows, column, measure=measure, **where) for measure in (PSNR, SSIM))
    return "-" if ratio != ratio else f"{ratio:.1f} dB, {similarity:.2f}"


def lines(titles: Sequence[str], cells: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a table."""
    head, *rest = (f"| {' | '.join(row)} |" for row in (titles, *cells))
    return [head, "|" + "---|" * len(titles), *rest]


def epsilon(defence: inverted_updates.Defence) -> str:
    """Return epsilon of one round of a client with one image in a mini-batch, with two digits; a dash for none."""
    settings = defence.settings
    if "privacy.level" not in settings:
        return "-"
    by_example = settings["privacy.level"] == "example-at-client"
    one = Release(settings["privacy.noise"], 1, IMAGES if by_example else 1, poisson=by_example)
    return f"{float(f'{epsilon_of({one: 1}, DELTA):.2g}'):,g}"


def of_updates(rows: Sequence[Row]) -> list[str]:
    """Return a line for each defence of an update, with a column for each setting that has several."""
    settings = [one for one in inverted_updates.SETTINGS if len(one.defences) > 1]
    titles = ["defence", "epsilon", *(one.name for one in settings)]
    nothing = [like(rows, "nothing", setting=one.name, defence="none") for one in settings]
    cells = [["nothing seen: the mean image", "-", *nothing]]
    for defence in inverted_updates.DEFENCES:
        own = [like(rows, setting=one.name, defence=defence.name) for one in settings]
        cells.append([defence.name, epsilon(defence), *own])
    return lines(titles, cells)


def of_sizes(rows: Sequence[Row]) -> list[str]:
    """Return a line for each size of a round, without a defence."""
    settings = [one for one in inverted_updates.SETTINGS if one.model == inverted_updates.SMALL_CNN]
    cells = [
        [one.name, *(like(rows, column, setting=one.name, defence="none") for column in ("value", "nothing"))]
        for one in settings
    ]
    return lines(["what a client trains", "rebuilt", "the mean image"], cells)


def of_hijacks(rows: Sequence[Row]) -> list[str]:
    """Return a line for each attack on a client's blocks, with a column for each round."""
    rounds = sorted({int(row["setting"].rpartition(" ")[2]) for row in rows})
    cells = []
    for case in hijack.CASES:
        own = [
            like(rows, attack=case.attack, setting=f"cut {case.cut}, round {number}", defence=case.defence)
            for number in rounds
        ]
        cells.append([case.attack, str(case.cut), case.defence, *own])
    return lines(["the edge", "cut", "defence", *(f"round {number}" for number in rounds)], cells)


def of_activations(rows: Sequence[Row]) -> list[str]:
    """Return a line for each noise at activations: the accuracy, and per cent of what privacy-measured.md measures."""
    measures = [measure for measure in LEAKS if any(row["measure"] == measure for row in rows)]
    cells = []
    for noise in noisy_cut.NOISES:
        where = {"defence": noisy_cut.defence_of(noise)}
        accuracy = mean_of(rows, measure=noisy_cut.ACCURACY, **where)
        leaks = [f"{100 * mean_of(rows, measure=measure, **where):.0f}" for measure in measures]
        cells.append([where["defence"], f"{accuracy:.2f}", *leaks])
    return lines(["defence", "accuracy", *(LEAKS[measure] for measure in measures)], cells)


TABLES: dict[str, tuple[Callable[[Sequence[Row]], list[str]], ...]] = {
    "updates": (of_updates, of_sizes),
    "hijack": (of_hijacks,),
    "activations": (of_activations,),
}


def tables(rows: Sequence[Row]) -> list[str]:
    """Return all tables for which there are rows, as texts."""
    found = []
    for part, makes in TABLES.items():
        if own := [row for row in rows if row["part"] == part]:
            found += ["\n".join(make(own)) for make in makes]
    return found
