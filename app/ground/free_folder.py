"""A folder that something is to be made in."""

from pathlib import Path

from espalier.app.ground.errors import UserError


def check_free(folder: Path) -> None:
    """Raise UserError unless a folder can be made here, or an empty one is."""
    if folder.is_dir():
        if any(folder.iterdir()):
            raise UserError(f"{folder}: is not empty: expected is a new folder")
    elif folder.exists() or folder.is_symlink():
        raise UserError(f"{folder}: is no folder: expected is a new one")
