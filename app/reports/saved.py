"""The config of a run in a results folder."""

from pathlib import Path

from espalier.app.config.parse import parse_saved
from espalier.app.config.run_config import RunConfig
from espalier.app.ground.errors import UserError
from espalier.app.ground.object_spec import ObjectSpec
from espalier.app.reports.folder import saved_values


def saved_config(path: Path) -> RunConfig:
    """Return the config of the run in a results folder, to read what is there; nothing that it names is imported.

    Raises
    ------
    UserError
        If the folder holds no run, or its config is damaged.
    """
    values = saved_values(path)
    try:
        return parse_saved(values)
    except UserError as error:
        raise UserError(f"{path / 'config.json'}: {error}") from None


def own_code(config: RunConfig) -> dict[str, str]:
    """Return the settings that name code of a user's own, which a run imports, by key."""
    settings = (value for section in config.held for _, value in section)
    specs = [value for value in settings if isinstance(value, ObjectSpec) and value.is_own]
    own = {
        "algorithm": config.algorithm.written,
        "engine": config.engine.written,
        "report.tracker": config.report.tracker.own,
    }
    return {key: text for key, text in own.items() if text} | {spec.key: spec.text for spec in specs}
