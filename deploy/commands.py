"""The commands of a deployment's programs: what ``local.py`` starts, and what ``docker/compose.yaml`` does."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path


def superlink_command(python: str, deploy: Path, address: str, certificates: Path, options: Sequence[str]) -> list[str]:
    """Return the command of a SuperLink with TLS that accepts registered SuperNodes only.

    Parameters
    ----------
    python : str
        The interpreter.
    deploy : Path
        The folder of ``superlink.py``.
    address : str
        Where it listens.
    certificates : Path
        The folder of ``ca.crt``, ``server.crt`` and ``server.key``.
    options : Sequence[str]
        More options of ``flower-superlink``.
    """
    host, port = address.rsplit(":", 1)
    return [
        *(python, str(deploy / "superlink.py"), "--enable-supernode-auth", "--host", host, "--port", port, *options),
        *("--ssl-ca-certfile", str(certificates / "ca.crt")),
        *("--ssl-certfile", str(certificates / "server.crt"), "--ssl-keyfile", str(certificates / "server.key")),
    ]


def supernode_command(
    python: str,
    deploy: Path,
    superlink: str,
    authority: Path,
    key: Path,
    node_config: str,
    options: Sequence[str] = (),
) -> list[str]:
    """Return the command of a SuperNode that proves who it is.

    Parameters
    ----------
    python : str
        The interpreter.
    deploy : Path
        The folder of ``supernode.py``.
    superlink : str
        The SuperLink's address.
    authority, key : Path
        The certificate of who signed the SuperLink's, and the SuperNode's private key.
    node_config : str
        As `device_configs` and `gateway_config` return it.
    options : Sequence[str] (default: none)
        More options of ``flower-supernode``.
    """
    return [
        *(python, str(deploy / "supernode.py"), "--superlink", superlink, *options),
        *("--root-certificates", str(authority), "--auth-supernode-private-key", str(key)),
        *("--node-config", node_config),
    ]


def device_configs(clients: Iterable[int], num_clients: int) -> list[str]:
    """Return the node configs of clients."""
    return [f"partition-id={i} num-partitions={num_clients}" for i in clients]


def gateway_config(edge: int, num_edges: int, folder: Path) -> str:
    """Return the node config of an edge's gateway, which meets the edge's run in a folder."""
    return f"partition-id={edge} num-partitions={num_edges} edge-folder={json.dumps(str(folder))}"
