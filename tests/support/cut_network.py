"""Nodes in namespaces of their own, cabled to a bridge in another one; cables can be cut."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from weft.host.net import namespaces

BRIDGE = "bridge"


class Network:
    """`addresses` by node. What is sent over a cable that is cut is lost, and nobody is told."""

    def __init__(self, nodes: Sequence[str]) -> None:
        self._namespaces = {node: namespaces.build_name(node) for node in (BRIDGE, *nodes)}
        self.addresses = {node: f"10.81.0.{n}" for n, node in enumerate(nodes, start=1)}

    def build(self) -> None:
        for namespace in self._namespaces.values():
            namespaces.create(namespace)
        self._ip(BRIDGE, "link", "add", BRIDGE, "type", "bridge")
        self._ip(BRIDGE, "link", "set", BRIDGE, "up")
        for node, address in self.addresses.items():
            far = ["peer", "name", f"to-{node}", "netns", self._namespaces[BRIDGE]]
            self._ip(node, "link", "add", "eth0", "type", "veth", *far)
            self._ip(node, "address", "add", f"{address}/24", "dev", "eth0")
            self._ip(node, "link", "set", "eth0", "up")
            self._ip(BRIDGE, "link", "set", f"to-{node}", "master", BRIDGE, "up")

    def cut(self, node: str) -> None:
        self._ip(BRIDGE, "link", "set", f"to-{node}", "down")

    def mend(self, node: str) -> None:
        self._ip(BRIDGE, "link", "set", f"to-{node}", "up")

    def enter(self, node: str) -> list[str]:
        """Words before a command that is to run there."""
        return ["ip", "netns", "exec", self._namespaces[node]]

    def remove(self) -> None:
        for namespace in self._namespaces.values():
            namespaces.remove(namespace)

    def _ip(self, node: str, *words: str) -> None:
        namespaces.run_command(["ip", "-n", self._namespaces[node], *words])


@contextmanager
def cut_network(nodes: Sequence[str]) -> Iterator[Network]:
    network = Network(nodes)
    try:
        network.build()
        yield network
    finally:
        network.remove()
