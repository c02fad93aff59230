"""The config of a run in a results folder."""

from pathlib import Path

from espalier.app.config.parse import parse_config
from espalier.app.config.run_config import RunConfig
from espalier.app.errors import UserError
from espalier.app.reports.folder import saved_values


def saved_config(path: Path) -> RunConfig:
    """Return the config of the run in a results folder.

    Raises
    ------
    UserError
        If the folder holds no run, or its config is damaged.
    """
    values = saved_values(path)
    try:
        return parse_config(values)
    except UserError as error:
        raise UserError(f"{path / 'config.json'}: {error}") from None
