"""Logging of the app: its own lines plainly, and a user's mistake as one line without a traceback."""

import logging

from espalier.app.ground.errors import UserError


class _Print(logging.Handler):
    """Prints records to what standard output is at the time; Flower exchanges it while an app runs."""

    def emit(self, record: logging.LogRecord) -> None:
        print(self.format(record), flush=True)


def show_own_lines() -> None:
    """Show the project's log lines on standard output."""
    logger = logging.getLogger("espalier")
    logger.setLevel(logging.INFO)
    if not any(isinstance(handler, _Print) for handler in logger.handlers):
        logger.addHandler(_Print())


def quiet_flower() -> None:
    """Let Flower log warnings and errors only: its strategies log every step of every edge."""
    logging.getLogger("flwr").setLevel(logging.WARNING)


class WithoutTraceback(logging.Filter):
    """Turns the log record of a `UserError` into one line.

    Flower logs what a ServerApp raises with its traceback. For a mistake of the user's that hides the one line that
    helps.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Rewrite records that carry a UserError; let all pass."""
        if record.exc_info and isinstance(record.exc_info[1], UserError):
            record.msg, record.args, record.exc_info = f"error: {record.exc_info[1]}", (), None
        return True
