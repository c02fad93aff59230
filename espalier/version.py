"""The project's version, in a module that a folder named ``espalier`` in the current one does not hide."""

__version__ = "0.2.0"
