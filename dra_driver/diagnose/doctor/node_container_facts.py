"""Reads what the containers of one pod have, as their runtime made them.

The source is the runtime specification of each container, which containerd and CRI-O give by
``ContainerStatus(verbose).info["info"]`` as JSON: ``runtimeSpec.linux.devices`` are the device nodes in the container,
``runtimeSpec.linux.resources.devices`` the rules of its device cgroup, ``config.CDI_devices`` (containerd) the CDI
names that the kubelet asked for.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

from msgspec import Struct

from dra_driver.diagnose.doctor.node_cri import CriClient, CriError

_MOST: Final = 256


class ContainerNode(Struct, frozen=True, kw_only=True):
    """A device node in a container; ``allowed``: a rule of the device cgroup names its numbers."""

    path: str
    major: int
    minor: int
    allowed: bool


class ContainerFacts(Struct, frozen=True, kw_only=True):
    """One container. ``asked`` are the CDI names that the kubelet asked for, None where the runtime does not tell."""

    name: str
    asked: tuple[str, ...] | None = None
    nodes: tuple[ContainerNode, ...] = ()
    problem: str | None = None


class PodFacts(Struct, frozen=True, kw_only=True):
    """The running containers of a pod, as ``namespace/name``."""

    pod: str
    containers: tuple[ContainerFacts, ...] = ()
    problem: str | None = None


class Containers(Protocol):
    """The questions of `node_cri.CriClient` about containers."""

    def containers(self, namespace: str, pod: str) -> tuple[tuple[str, str], ...]: ...
    def container(self, container_id: str) -> Mapping[str, str]: ...
    def close(self) -> None: ...


def read_pod(socket: str, pod: str, dial: Callable[[str], Containers] = CriClient) -> PodFacts:
    """Ask the runtime on ``socket`` for the containers of ``pod``, as ``namespace/name``."""
    namespace, _, name = pod.partition("/")
    client = dial(socket)
    try:
        found = client.containers(namespace, name)
        return PodFacts(pod=pod, containers=tuple(_container(client, *each) for each in found[:_MOST]))
    except CriError as error:
        return PodFacts(pod=pod, problem=str(error))
    finally:
        client.close()


def _container(client: Containers, name: str, container_id: str) -> ContainerFacts:
    try:
        return parsed(name, client.container(container_id).get("info", ""))
    except CriError as error:
        return ContainerFacts(name=name, problem=str(error))


def parsed(name: str, info: str) -> ContainerFacts:
    """The container in the runtime's information about it."""
    try:
        wire = json.loads(info)
        linux = wire["runtimeSpec"]["linux"]
        rules = linux.get("resources", {}).get("devices") or []
        nodes = tuple(_node(each, rules) for each in (linux.get("devices") or [])[:_MOST] if each.get("type") == "c")
        asked = _asked(wire.get("config"))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return ContainerFacts(name=name, problem="the runtime does not tell how it made the container")
    return ContainerFacts(name=name, asked=asked, nodes=nodes)


def _node(wire: Mapping[str, Any], rules: list[Mapping[str, Any]]) -> ContainerNode:
    major, minor = int(wire["major"]), int(wire["minor"])
    allowed = any(_covers(rule, major, minor) for rule in rules if rule.get("allow"))
    return ContainerNode(path=str(wire["path"]), major=major, minor=minor, allowed=allowed)


def _covers(rule: Mapping[str, Any], major: int, minor: int) -> bool:
    """An absent or negative number covers all (OCI runtime specification, config-linux.md, "Allowed Device list")."""
    kind_fits = rule.get("type") in (None, "a", "c")
    return kind_fits and all(
        rule.get(key) is None or rule[key] < 0 or rule[key] == value
        for key, value in (("major", major), ("minor", minor))
    )


def _asked(config: object) -> tuple[str, ...] | None:
    listed = config.get("CDI_devices", config.get("cdi_devices")) if isinstance(config, dict) else None
    if not isinstance(listed, list):
        return None
    return tuple(str(each.get("name")) for each in listed[:_MOST] if isinstance(each, dict))
