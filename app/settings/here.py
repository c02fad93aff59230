"""What of a run is on a host, by ``deploy.role``."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Here:
    """What of a run is on this host.

    Parameters
    ----------
    strategies : tuple[str, ...]
        The keys of the strategies that are made here; those of other hosts need not be installed.
    hint : str
        Where to look when strategies and the federation do not go together.
    has_cloud : bool (default: True)
        The cloud, which evaluates on a pool of its own.
    reaches_clients : bool (default: True)
        Clients are asked from here, not from the hosts of their edges.
    """

    strategies: tuple[str, ...]
    hint: str
    has_cloud: bool = True
    reaches_clients: bool = True

    @property
    def is_whole(self) -> bool:
        """Whether both tiers are here."""
        return self.has_cloud and self.reaches_clients


HERE = {
    "server": Here(("cloud-strategy", "edge-strategy"), "cloud-strategy, edge-strategy, num-clients and num-edges"),
    "cloud": Here(("cloud-strategy",), "cloud-strategy and num-edges", reaches_clients=False),
    "edge": Here(("edge-strategy",), "edge-strategy and deploy.edge-clients", has_cloud=False),
}
