"""Addresses of this machine, on which a port is opened."""

import socket
from errno import EADDRNOTAVAIL, EAFNOSUPPORT


def lacks_address(error: Exception) -> bool:
    """Return whether a port could not be opened because this machine has no such address, whatever the port."""
    unknown = isinstance(error, socket.gaierror | UnicodeError)  # the latter of what can be no name
    return unknown or (isinstance(error, OSError) and error.errno in (EADDRNOTAVAIL, EAFNOSUPPORT))
