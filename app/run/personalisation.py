"""Personalisation after training: a head of its own for every client."""

from collections.abc import Mapping, Sequence

import torch
from flwr.app import ArrayRecord
from flwr.serverapp import Grid

from espalier.app.meters.bytes import ByteMeter
from espalier.app.reports.folder import ResultsFolder
from espalier.app.reports.metrics import personalised_line
from espalier.strategies import Hierarchical
from espalier.strategies.exchange import converse
from espalier.strategies.split import FineTuning, Personalised
from espalier.strategies.views import MemberGrid


def personalise(
    fine_tuning: FineTuning,
    grid: Grid,
    hierarchical: Hierarchical,
    arrays: ArrayRecord,
    client_of: Mapping[int, int],
    folder: ResultsFolder,
    meter: ByteMeter,
    *,
    number: int,
    timeout_seconds: float | None,
    figures: Sequence[str],
    test: Mapping[str, float] | None = None,
    validates: bool = False,
) -> None:
    """Fine-tune the clients' heads from the trained model `arrays` and save those that are here in ``heads.pt``.

    Heads are judged by the figures that `test` has, those of the run on the test pool. Who does not tell those of
    `figures`, which every evaluation has, is left out of the evaluation. With `validates` clients tell
    figures of examples that they hold back, too.
    """
    results: dict[str, Personalised] = converse(
        grid,
        {
            name: edge.personalise(arrays, fine_tuning, MemberGrid(grid, hierarchical.topology[name]))
            for name, edge in hierarchical.edges.items()
        },
        timeout_seconds=timeout_seconds,
        on_message=lambda *what: meter.on_message("edge", *what),
    )
    results = {name: result.judged_by(figures) for name, result in results.items()}
    for name, result in results.items():
        hierarchical.log_failures("personalisation", name, result.failures)
    heads = {client_of[n]: head for result in results.values() for n, head in result.heads.items()}
    if heads:  # those of clients with a tail stay there
        folder.write_file("heads.pt", lambda file: torch.save(dict(sorted(heads.items())), file))
    folder.append_metrics([personalised_line(number, results, meter.drain(), client_of, test, validates=validates)])
