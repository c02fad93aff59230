"""Make the certificates and keys of hosts and of their SuperNodes, in a folder for each, as containers want them.

``python deploy/keys.py FOLDER USER HOST=SUPERNODE,SUPERNODE ...`` writes into FOLDER/HOST what `certificates` does for
that name, and the public keys that this host accepts, in ``devices``. FOLDER/SUPERNODE gets ``device``, its key, and
``ca.crt`` of its host. USER may read the private keys, but for those of the authorities.
"""

import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from certificates import make_certificates, make_device_key


def make_keys(folder: Path, user: str, hosts: Mapping[str, Sequence[str]]) -> None:
    """Write them.

    Parameters
    ----------
    folder : Path
        Gets a folder for each host and each SuperNode.
    user : str
        Who gets the servers' and the SuperNodes' private keys.
    hosts : Mapping[str, Sequence[str]]
        Each host's SuperNodes.

    Raises
    ------
    ValueError
        There is something of that name: SuperNodes with new keys would have to be registered anew.
    """
    for name in (*hosts, *(name for supernodes in hosts.values() for name in supernodes)):
        if (folder / name).exists():
            raise ValueError(
                f"{folder / name}: is there already: allowed is a folder without it; move it away for new keys"
            )
    for host, supernodes in hosts.items():
        make_certificates(folder / host, [host, "localhost", "127.0.0.1"])
        shutil.chown(folder / host / "server.key", user)
        (folder / host / "devices").mkdir()
        for name in supernodes:
            (folder / name).mkdir()
            public_key = make_device_key(folder / name / "device")
            shutil.chown(folder / name / "device", user)
            shutil.copy(public_key, folder / host / "devices" / f"{name}.pub")
            shutil.copy(folder / host / "ca.crt", folder / name)


if __name__ == "__main__":
    if len(sys.argv) < 4 or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    named = [argument.partition("=") for argument in sys.argv[3:]]
    try:
        make_keys(Path(sys.argv[1]), sys.argv[2], {host: supernodes.split(",") for host, _, supernodes in named})
    except (LookupError, OSError, ValueError) as error:
        sys.exit(str(error))
