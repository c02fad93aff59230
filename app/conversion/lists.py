"""Lists of images, as they come with published data sets."""

from pathlib import Path

from espalier.app.ground.errors import UserError
from espalier.app.ground.regular_files import read_text

MOST_BYTES = 16_000_000  # those of the published ones have less than one million


def text_of_list(file: Path, expected: str) -> str:
    """Return what is in a list.

    Parameters
    ----------
    file : Path
        The list.
    expected : str
        What there should be, for the error.

    Raises
    ------
    UserError
        If it is no file, as a pipe that nobody writes to, has too many bytes, or can't be read.
    """
    try:
        return read_text(file, MOST_BYTES).removeprefix("\ufeff")  # which some editors begin a file with
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{file}: {getattr(error, 'strerror', error)}: {expected}") from None
