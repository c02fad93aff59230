"""Lists of images, as they come with published data sets."""

from pathlib import Path

from espalier.app.ground.errors import UserError

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
    if file.exists() and not file.is_file():
        raise UserError(f"{file}: is no file: {expected}")
    try:
        if (size := file.stat().st_size) > MOST_BYTES:
            raise UserError(f"{file}: has {size:,} bytes: expected are at most {MOST_BYTES:,}")
        return file.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{file}: can't be read ({error}): {expected}") from None
