"""What trackers keep in a results folder, and what they take from it."""

import json
from collections.abc import Callable
from pathlib import Path
from secrets import token_hex

from espalier.app.ground.durable import replace_text
from espalier.app.ground.regular_files import read_text
from espalier.app.reports.folder import ResultsFolder, damaged

IDS = "trackers.json"
MODELS, PICTURES = ("model.pt", "best-model.pt", "heads.pt"), "*.png"


def kept_id(folder: Path, tracker: str, new: Callable[[], str] = lambda: token_hex(4)) -> str:
    """Return by what a tracker knows the run of a results folder: kept there, so that a resumed run goes on in it.

    Parameters
    ----------
    folder : Path
        The results folder.
    tracker : str
        Its name.
    new : Callable[[], str] (default: random letters)
        Makes one for a run that has none.
    """
    try:
        ids = json.loads(read_text(folder / IDS))
    except FileNotFoundError:
        ids = {}
    except ValueError:
        raise damaged(folder / IDS) from None
    if not isinstance(ids, dict):
        raise damaged(folder / IDS)
    if not isinstance(ids.get(tracker), str):
        replace_text(folder / IDS, json.dumps(ids | {tracker: new()}, indent=2) + "\n")
        return kept_id(folder, tracker)
    return str(ids[tracker])


def last_round_in(folder: Path) -> int:
    """Return the last global round that is over in a results folder; 0 for a run that has not begun."""
    return max((line["round"] for line in ResultsFolder(folder).read_metrics()), default=0)


def models_in(folder: Path) -> list[Path]:
    """Return the files of models that a run has written."""
    return [folder / name for name in MODELS if (folder / name).exists()]


def pictures_in(folder: Path) -> list[Path]:
    """Return the plots that a run has drawn."""
    return sorted(folder.glob(PICTURES))
