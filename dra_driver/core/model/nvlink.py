"""How a GPU is connected by NVLink, as plain values."""

from msgspec import Struct


class NvLinkPeer(Struct, frozen=True, kw_only=True):
    """A GPU at the other end of ``links`` NVLinks. ``pci_bus_id`` is in sysfs form, ``0000:65:00.0``."""

    pci_bus_id: str
    links: int


class NvLinks(Struct, frozen=True, kw_only=True):
    """The links of one GPU that have been up since the process started: a link that goes down stays.

    ``peers`` are in order of address. ``switch_links`` lead to NVSwitches. ``clique`` is ``<cluster UUID>.<number>`` of
    a fabric that spans nodes, as NVIDIA's label ``nvidia.com/gpu.clique``; None without one.
    """

    peers: tuple[NvLinkPeer, ...] = ()
    switch_links: int = 0
    clique: str | None = None

    def __or__(self, other: "NvLinks") -> "NvLinks":
        """What either has; ``other`` is newer and decides the clique."""
        peers = {peer.pci_bus_id: peer for peer in sorted((*self.peers, *other.peers), key=lambda peer: peer.links)}
        return NvLinks(
            peers=tuple(peer for _, peer in sorted(peers.items())),
            switch_links=max(self.switch_links, other.switch_links),
            clique=other.clique or self.clique,
        )
