"""A chapter of the demonstration: a namespace, pods, waits, tables, and commands that run as child processes."""

import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Final

from dra_driver.core.errors import DraError, RetryableError
from dra_driver.sim.apiserver.jsonvalue import Obj, utc_now
from dra_driver.sim.apiserver.kind import ResourceKind
from dra_driver.sim.apiserver.kinds import EVENTS, NAMESPACES, PODS
from dra_driver.sim.apiserver.printers import printer_of
from dra_driver.sim.cluster import Cluster
from dra_driver.sim.objects import is_ready

WAIT_S: Final = 30.0
COMMAND_S: Final = 60.0
_MODULES: Final = {
    "kubectl dra": "dra_driver.kubectl.commands.kubectl",
    "dra-driver": "dra_driver.core.command_line.main",
}

Say = Callable[[str], None]


class Chapter:
    """A chapter in its own namespace. ``problem`` is the first unmet expectation, "" without one."""

    def __init__(self, cluster: Cluster, say: Say, namespace: str) -> None:
        self.cluster, self.say, self.namespace = cluster, say, namespace
        self.problem = ""

    def run(self, title: str, story: Callable[[], None]) -> str:
        """Create the namespace, run ``story``, and `end`; returns ``problem``."""

        def play() -> None:
            self.cluster.store.create(NAMESPACES, {"metadata": {"name": self.namespace}})
            story()

        self.part(title, play)
        try:
            self.end()
        except DraError as error:
            self._fail(error)
        return self.problem

    def part(self, title: str, story: Callable[[], None]) -> None:
        """Run one part, unless an earlier one failed. Sets ``problem`` and prints it if the part fails."""
        if self.problem:
            return
        self.say(title)
        try:
            story()
        except DraError as error:
            self._fail(error)

    def _fail(self, error: DraError) -> None:
        if not self.problem:
            self.problem = str(error)
            self.say(f"    problem  {self.problem}\n")

    def end(self) -> None:
        """Delete the namespace and wait until nothing of it is left on the nodes."""
        self.cluster.store.delete(NAMESPACES, self.namespace)
        self.expect(self._left, "the nodes to be clean after the chapter")

    def _left(self) -> str | None:
        left = self.cluster.leftovers()
        if self.cluster.store.find(NAMESPACES, self.namespace) is not None:
            left.append(f"namespace {self.namespace}")
        return ", ".join(left) or None

    def expect(self, check: Callable[[], str | None], what: str, within_s: float = WAIT_S) -> None:
        """Wait until ``check`` returns None. Raises RetryableError with its last answer."""
        self.cluster.wait(check, within_s, what)

    def expect_ready(self, names: Sequence[str], what: str) -> None:
        self.expect(lambda: ", ".join(name for name in names if not self.is_ready(name)) or None, what)

    def make_template(self, name: str, exactly: Obj) -> None:
        spec = {"spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}}}
        self.create("resource.k8s.io/v1", "ResourceClaimTemplate", name, spec)

    def make_pod(self, name: str, exactly: Obj, node: str = "") -> None:
        """Create a pod with one container and a claim for ``exactly``, from a template with the name of the pod."""
        self.make_template(name, exactly)
        container = {"name": "main", "image": "ubuntu:24.04", "resources": {"claims": [{"name": "gpu"}]}}
        claims = [{"name": "gpu", "resourceClaimTemplateName": name}]
        selector = {"kubernetes.io/hostname": node} if node else {}
        self.create("v1", "Pod", name, {"containers": [container], "resourceClaims": claims, "nodeSelector": selector})

    def create(self, version: str, kind: str, name: str, spec: Obj) -> None:
        obj = {"apiVersion": version, "kind": kind, "metadata": {"name": name}, "spec": spec}
        self.cluster.client.create(obj, self.namespace)

    def delete_pods(self, names: Iterable[str]) -> None:
        for name in names:
            self.cluster.store.delete(PODS, name, self.namespace)

    def pods(self) -> list[Obj]:
        return self.cluster.store.list(PODS, self.namespace).items

    def pod(self, name: str) -> Obj:
        return self.cluster.store.get(PODS, name, self.namespace)

    def is_ready(self, name: str) -> bool:
        pod = self.cluster.store.find(PODS, name, self.namespace)
        return pod is not None and is_ready(pod)

    def events(self) -> list[tuple[str, str, str]]:
        events = self.cluster.store.list(EVENTS, self.namespace).items
        return [(item["involvedObject"]["name"], item["reason"], item["message"]) for item in events]

    def show(self, kind: ResourceKind, objects: Iterable[Obj], options: str = "") -> None:
        self.say(f"$ kubectl get {kind.plural}{options}\n{table(kind, objects, utc_now())}\n")

    def command(self, program: str, *arguments: str, statuses: Sequence[int] = (0,), folder: Path | None = None) -> str:
        """Run ``kubectl dra`` or ``dra-driver`` and print its output. Raises RetryableError for another exit status."""
        shown = f"{program} {' '.join(arguments)}".replace(f" --kubeconfig {self.cluster.kubeconfig}", "")
        whole = [sys.executable, "-m", _MODULES[program], *arguments]
        try:
            done = subprocess.run(whole, cwd=folder, capture_output=True, text=True, timeout=COMMAND_S, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise RetryableError(f"{shown} did not run: {error}") from error
        if done.returncode not in statuses:
            raise RetryableError(f"{shown} failed: {done.stderr.strip()}")
        self.say(f"$ {shown}\n{done.stderr}{done.stdout}")
        return done.stdout

    @property
    def kubeconfig(self) -> tuple[str, str]:
        return ("--kubeconfig", str(self.cluster.kubeconfig))


def table(kind: ResourceKind, objects: Iterable[Obj], now: datetime) -> str:
    """The output of ``kubectl get`` for objects of one kind, without the columns of ``-o wide``."""
    shown = [column for column in printer_of(kind.kind) if not column.priority]
    rows = [[str(column.cell(obj, now)) for column in shown] for obj in objects]
    return columns([[column.name.upper() for column in shown], *rows])


def columns(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[index]) for row in rows) for index in range(len(rows[0]))]
    lines = ("   ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows)
    return "\n".join(lines)
