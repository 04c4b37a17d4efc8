"""What a simulated node shows of its containers' processes, for the usage exporter: a /proc, and links to logs.

Containers of the embedded cluster run no program, so each gets one made process: ``stat``, ``cgroup`` (as containerd's
with systemd and cgroup v2) and ``environ`` of proc(5). The link in the folder of logs is named as the kubelet names it
(kubernetes/kubernetes pkg/kubelet/kuberuntime/legacy.go, legacyLogSymlink). All is in files, which outlive a kubelet.
"""

import hashlib
import os
import shutil
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from dra_driver.sim.apiserver.jsonvalue import Obj
from dra_driver.sim.objects import key, uid

FIRST_PID: Final = 1000
_CGROUP: Final = (
    "0::/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{}.slice/cri-containerd-{}.scope\n"
)


class MadeProcesses:
    """Thread-safe. ``proc`` and ``logs`` are folders, made here."""

    def __init__(self, proc: Path, logs: Path) -> None:
        self._proc, self._logs = proc, logs
        self._lock = threading.Lock()  # guards the choice of process ids
        (proc / "1").mkdir(parents=True, exist_ok=True)
        logs.mkdir(parents=True, exist_ok=True)

    def begin(self, pod: Obj, container: str, environment: Mapping[str, str]) -> int:
        """A process of that container starts, after its former one has ended; returns its id."""
        self.end(uid(pod), container)
        namespace, name = key(pod)
        identity = container_id(uid(pod), container)
        with self._lock:
            pid = max([FIRST_PID, *(int(each.name) for each in self._proc.iterdir() if each.name.isdigit())]) + 1
            folder = self._proc / f".{pid}"
            folder.mkdir()
            began = int(time.clock_gettime(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK"))
            fields = " ".join(["S", *["0"] * 18, str(began), *["0"] * 30])
            (folder / "stat").write_text(f"{pid} ({container[:15]}) {fields}\n")
            (folder / "cgroup").write_text(_CGROUP.format(uid(pod).replace("-", "_"), identity))
            (folder / "environ").write_text("".join(f"{name}={value}\0" for name, value in environment.items()))
            folder.rename(self._proc / str(pid))
        link = self._logs / f"{name}_{namespace}_{container}-{identity}.log"
        link.unlink(missing_ok=True)
        link.symlink_to(f"/var/log/pods/{namespace}_{name}_{uid(pod)}/{container}/0.log")
        return pid

    def end(self, pod_uid: str, container: str) -> None:
        identity = container_id(pod_uid, container)
        for cgroup in self._proc.glob("[0-9]*/cgroup"):
            with suppress(FileNotFoundError):  # of another container that ends now
                if identity in cgroup.read_text():
                    shutil.rmtree(cgroup.parent, ignore_errors=True)
        for link in self._logs.glob(f"*-{identity}.log"):
            link.unlink(missing_ok=True)


def container_id(pod_uid: str, container: str) -> str:
    return hashlib.sha256(f"{pod_uid}/{container}".encode()).hexdigest()
