"""Read processes, containers and their claims from the host and the kubelet. Each reader is of one thread.

- ``/proc`` (proc(5)): program, cgroup and start of a process. ``/proc/PID/stat`` and ``/proc/PID/cgroup`` are readable
  for every user, unless /proc is mounted with hidepid. The /proc of a PID namespace that is bound into a container
  shows that namespace's PIDs, so no hostPID is needed.

- PodResources API v1, List: the containers that have devices of claims. In Kubernetes 1.34 and 1.35 the field
  ``dynamic_resources`` needs the feature gate KubeletPodResourcesDynamicResources, on by default there.
"""

import os
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Final

from msgspec import Struct

from dra_driver.core._pb.podresources_v1 import api_pb2 as pb
from dra_driver.core.model.usage_findings import MAX_COMMAND
from dra_driver.core.text import printable
from dra_driver.core.unix_grpc import CallError, Peer, Service
from dra_driver.node.usage import sources

MAX_BYTES: Final = 16 * 1024
FRESH_S: Final = 60.0
"""A process keeps its facts for this time: its program may change with exec, its PID and start do not."""
_TICKS: Final = os.sysconf("SC_CLK_TCK")
_SLACK_S: Final = 2 / _TICKS


class _Known(Struct, frozen=True):
    start: int
    facts: sources.ProcessFacts
    until_s: float


def since_boot_s() -> float:
    """The clock of ``starttime`` in /proc/PID/stat."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class ProcReader:
    """``root`` is a /proc; ``clock`` does not jump."""

    def __init__(self, root: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._root, self._clock = root, clock
        self._known: dict[int, _Known] = {}

    def read(self, pids: Collection[int], listed_s: float) -> Mapping[int, sources.ProcessFacts] | sources.Unread:
        """The facts of processes that live and began before ``listed_s`` (of `since_boot_s`), when the driver listed
        them: one that began later has the PID of a process that ended."""
        if not Path(self._root, "self").is_symlink() and not Path(self._root, "1").is_dir():
            return sources.Unread(reason=f"{self._root} is no /proc: mount the host's and set --proc-dir (PROC_DIR)")
        now_s = self._clock()
        found = {pid: known for pid in sorted(set(pids)) if (known := self._process(pid, listed_s, now_s)) is not None}
        self._known = found
        return {pid: known.facts for pid, known in found.items()}

    def is_nested(self) -> bool:
        """Return whether this process has a PID namespace below that of this /proc. Its /proc/self/status then has a
        PID of each (``NSpid``, proc(5)); unlike /proc/1/ns/pid it needs no permission."""
        lines = (self._content("self", "status") or "").splitlines()
        return any(line.startswith("NSpid:") and len(line.split()) > 2 for line in lines)

    def _process(self, pid: int, listed_s: float, now_s: float) -> _Known | None:
        stat = self._stat(pid)
        if stat is None or stat[0] / _TICKS > listed_s + _SLACK_S:
            return None
        start, command = stat
        known = self._known.get(pid)
        if known is not None and known.start == start and now_s < known.until_s:
            return known
        cgroup = self._content(pid, "cgroup")
        again = self._stat(pid)
        if cgroup is None or again is None or again[0] != start:
            return None
        return _Known(start, sources.ProcessFacts(command=command, place=sources.place_of(cgroup)), now_s + FRESH_S)

    def _stat(self, pid: int) -> tuple[int, str] | None:
        """The start, in ticks since boot, and the program."""
        content = self._content(pid, "stat")
        if content is None:
            return None
        # PID (COMM) STATE ...: the program's name may have spaces and brackets.
        head, _, tail = content.rpartition(")")
        fields = tail.split()
        if len(fields) < 20 or not fields[19].isdigit():
            return None
        return int(fields[19]), printable(head.partition("(")[2][:MAX_COMMAND])

    def _content(self, pid: int | str, name: str) -> str | None:
        try:
            with open(f"{self._root}/{pid}/{name}", "rb") as file:  # noqa: PTH123 - thousands per sample
                return file.read(MAX_BYTES).decode("utf-8", "replace")
        except (OSError, ValueError):  # it ended, or its files may not be read
            return None


class LogLinks:
    """The kubelet's links to logs, by name only; listed again when a link came or went."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._seen: tuple[int, int] | None = None
        self._index = sources.index(())

    def read(self) -> sources.LogIndex | sources.Unread:
        try:
            status = os.stat(self._folder)  # noqa: PTH116 - once per sample
            seen = (status.st_ino, status.st_mtime_ns)
            if seen != self._seen:
                self._index, self._seen = sources.index(self._links()), seen
        except OSError as error:
            self._seen = None
            return sources.Unread(
                reason=f"the kubelet's links to logs in {self._folder} cannot be listed: {error.strerror}; mount the "
                "folder read-only and set --log-dir (LOG_DIR)"
            )
        return self._index

    def _links(self) -> list[tuple[str, str]]:
        found: list[tuple[str, str]] = []
        with os.scandir(self._folder) as entries:
            for entry in entries:
                if len(found) < sources.MAX_LINKS and entry.name.endswith(".log"):
                    try:
                        found.append((entry.name, os.readlink(entry.path)))  # noqa: PTH115 - hundreds of them
                    except OSError:  # no link, or it has gone
                        continue
        return found


CALL_S: Final = 3.0
LISTER: Final = Service(pb, "PodResourcesLister")
MAX_PODS: Final = 2000


class PodResourcesReader:
    """``driver`` is the name of this driver; devices of others are omitted. Close it."""

    def __init__(self, path: str, driver: str, call_s: float = CALL_S) -> None:
        self._path, self._driver, self._call_s = path, driver, call_s
        self._peer: Peer | None = None

    def close(self) -> None:
        """Idempotent; the next read connects again."""
        if self._peer is not None:
            self._peer.close()
            self._peer = None

    def read(self) -> sources.PodClaims | sources.Unread:
        """The devices of each container; waits at most ``call_s`` seconds."""
        if not Path(self._path).exists():
            return self._unread("the socket does not exist")
        self._peer = self._peer or Peer(self._path)
        try:
            answer = self._peer.call(LISTER, "List", pb.ListPodResourcesRequest(), self._call_s)
        except CallError as error:
            self.close()
            return self._unread(str(error))
        return claims_of(answer, self._driver)

    def _unread(self, why: str) -> sources.Unread:
        return sources.Unread(
            reason=f"cannot read which containers have which claims from the kubelet at {self._path}: {why}; mount the "
            "directory of the socket and set --pod-resources-socket (POD_RESOURCES_SOCKET)"
        )


def claims_of(answer: pb.ListPodResourcesResponse, driver: str) -> sources.PodClaims:
    """The devices of this driver in the kubelet's answer, by pod and container."""
    found: dict[tuple[str, str], dict[str, tuple[sources.ClaimedDevice, ...]]] = {}
    for pod in answer.pod_resources[:MAX_PODS]:
        containers = {container.name: tuple(_devices(container, driver)) for container in pod.containers}
        if any(containers.values()):
            found[pod.namespace, pod.name] = containers
    return found


def _devices(container: pb.ContainerResources, driver: str) -> list[sources.ClaimedDevice]:
    return [
        sources.ClaimedDevice(
            namespace=claim.claim_namespace,
            claim=claim.claim_name,
            pool=device.pool_name,
            device=device.device_name,
            share_id=device.share_id or None,
        )
        for claim in container.dynamic_resources
        for device in claim.claim_resources
        if device.driver_name == driver
    ]
