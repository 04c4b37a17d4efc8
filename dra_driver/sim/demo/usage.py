"""Chapter: three claims share one GPU, one exceeds its grant, and one is idle.

A real usage exporter samples simulated processes; its findings reach the controller, which evicts one pod. That takes
about 40 s, so the chapter has its own cluster, and the rest of the demonstration runs between its two parts. The
controller starts with the first part, so that nothing is evicted before it was shown.
"""

from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from dra_driver.core.errors import DraError, RetryableError
from dra_driver.sim.apiserver.jsonvalue import Obj, dig, entries
from dra_driver.sim.apiserver.kinds import PODS
from dra_driver.sim.cluster import Cluster
from dra_driver.sim.demo.chapter import Chapter, Say
from dra_driver.sim.node.node_process import ControllerSubprocess
from dra_driver.sim.objects import is_ready

TITLE: Final = "--- three claims share one GPU"
NODES: Final = {"gpu-u": "1xa100-sxm4-40gb"}
NAMESPACE: Final = "demo-usage"
POLICY: Final = Path("examples/usage/shares-that-hold.yaml")
PODS_OF_CHAPTER: Final = Path("examples/usage/three-shares.yaml")
USED_GIB: Final = {"modest": 8, "greedy": 20, "sleepy": 0}
"""GiB that each pod uses of its 12, by the annotations of the example."""
GREEDY, SLEEPY = "greedy", "sleepy"
TOLD: Final = ("GpuMemoryOverGrant", "GpuEvictionAnnounced")
EVICTED: Final = "GpuEviction"
IDLE_S: Final = 20
EVICTED_S: Final = 120.0
_GIB: Final = 2**30


class UsageChapter(Chapter):
    """Call `reported` and `ended` once each, in this order, inside the context, which starts and stops the cluster."""

    def __init__(self, root: Path, say: Say) -> None:
        super().__init__(Cluster(NODES, policies=[root / POLICY], usage=True), say, NAMESPACE)
        self._root = root
        self._children = ExitStack()
        self._before: dict[str, str] = {}

    def __enter__(self) -> "UsageChapter":
        try:
            self._children.callback(self.cluster.stop)
            self.cluster.start()
            self.cluster.apply(self._root / "deploy/base/deviceclasses.yaml")
            self.cluster.apply(self._root / PODS_OF_CHAPTER, NAMESPACE)
        except DraError as error:
            self.problem = f"the cluster with usage exporters does not start: {error}"
        except BaseException:
            self._children.close()
            raise
        return self

    def __exit__(self, *_exc: object) -> None:
        self._children.close()

    def reported(self) -> None:
        """Expect that the exporter sees the use of each pod, and that the pod over its grant gets events."""
        self.part(f"{TITLE}: one exceeds its grant, and gets a warning", self._reported)

    def ended(self) -> None:
        """Expect that this pod is evicted, that its neighbours keep running, and that the idle claim is listed."""
        self.part(f"{TITLE}: the claim over its grant is evicted, the others keep running", self._ended)

    def _start_controller(self) -> None:
        log = self.cluster.folder / "controller.log"
        controller = ControllerSubprocess(self.cluster.kubeconfig, log, ["--evict-over-grant", "true"])
        controller.start()
        self._children.callback(controller.stop)

    def _reported(self) -> None:
        self.expect(lambda: not_running(self._running(), USED_GIB), "the pods to run")
        self.expect(lambda: unlike_used(self._seen(), USED_GIB), "the exporter to report the use of each pod")
        self._before = self._running()
        self._start_controller()
        self.say(f"    {', '.join(self._before)} have 12 GiB of one GPU each. The policy {POLICY}")
        self.say("    evicts a pod whose claim exceeds that for 10 s after the warning.\n")
        self._kubectl_dra("usage")
        self.expect(lambda: missing(self._events(GREEDY), *TOLD), "the event on the pod over its grant", EVICTED_S)
        self._say_events(GREEDY, *TOLD)
        self.say("    Examples continue.\n")

    def _ended(self) -> None:
        self.expect(lambda: missing(self._events(GREEDY), EVICTED), "the pod over its grant to be evicted", EVICTED_S)
        self.expect(lambda: "it still runs" if GREEDY in self._by_name() else None, "the evicted pod to end")
        self._say_events(GREEDY, EVICTED)
        wanted = {name: used for name, used in USED_GIB.items() if name != GREEDY}
        self.expect(lambda: unlike_used(self._seen(), wanted), "the exporter to see that it ended")
        self.expect(lambda: disturbed(self._before, self._running(), wanted), "the other pods to keep running")
        for name in wanted:
            if said := [reason for reason in self._events(name) if reason in (*TOLD, EVICTED)]:
                raise RetryableError(f"pod {name} keeps its grant, and got the events {', '.join(said)}")
        self.show(PODS, self.pods(), f" -n {NAMESPACE}")
        self._kubectl_dra("usage")
        self.expect(
            lambda: not_idle_yet(self._answer(), SLEEPY), f"the exporter to see the claim unused for {IDLE_S} s"
        )
        if problem := not_found_idle(self._kubectl_dra("idle", "--idle-for", f"{IDLE_S}s"), SLEEPY):
            raise RetryableError(problem)
        self.end()

    def _kubectl_dra(self, *arguments: str) -> str:
        return self.command("kubectl dra", *arguments, "-n", NAMESPACE, *self.kubeconfig, folder=self._root)

    def _seen(self) -> dict[str, float]:
        return used_by_pod(self._answer())

    def _answer(self) -> Mapping[str, object]:
        exporter = next(iter(self.cluster.nodes.values())).exporter
        try:
            return exporter.usage() if exporter is not None else {}
        except RetryableError:
            return {}

    def _by_name(self) -> dict[str, Obj]:
        return {pod["metadata"]["name"]: pod for pod in self.pods()}

    def _running(self) -> dict[str, str]:
        pods = self._by_name().items()
        return {name: pod["metadata"]["uid"] for name, pod in pods if is_ready(pod) and _restarts(pod) == 0}

    def _events(self, pod: str) -> dict[str, str]:
        return {reason: message for name, reason, message in self.events() if name == pod}

    def _say_events(self, pod: str, *reasons: str) -> None:
        events = self._events(pod)
        self.say("".join(f"    event    {pod}: {reason}: {events[reason]}\n" for reason in reasons))


def used_by_pod(answer: Mapping[str, object]) -> dict[str, float]:
    """GiB that each pod uses, from an exporter's ``/usage``; claims of unknown use are omitted."""
    return {
        pod: device["usedBytes"] / _GIB
        for claim in entries(answer, "claims")
        for device in claim["devices"]
        for pod in claim["pods"]
        if device.get("usedBytes") is not None
    }


def not_idle_yet(answer: Mapping[str, object], pod: str) -> str | None:
    """Return why a pod's claim is not idle for `IDLE_S` in an exporter's ``/usage``; None if it is."""
    of_pod = [device for claim in entries(answer, "claims") if pod in claim["pods"] for device in claim["devices"]]
    seen = [device.get("idleSeconds") for device in of_pod]
    return None if seen and all((each or 0) >= IDLE_S for each in seen) else f"it saw {pod} unused for {seen} s"


def unlike_used(seen: Mapping[str, float], wanted: Mapping[str, float]) -> str | None:
    return None if seen == wanted else f"it sees {dict(seen) or 'nothing'} (GiB by pod)"


def not_running(running: Iterable[str], names: Iterable[str]) -> str | None:
    """Return the pods of ``names`` that do not run."""
    return ", ".join(sorted({*names} - {*running})) or None


def missing(events: Mapping[str, str], *reasons: str) -> str | None:
    missing = [reason for reason in reasons if reason not in events]
    return f"no event {', '.join(missing)}, only {', '.join(events) or 'none'}" if missing else None


def disturbed(before: Mapping[str, str], now: Mapping[str, str], names: Mapping[str, object]) -> str | None:
    """Return the pods of ``names`` that were interrupted: UIDs by name, before and now."""
    gone = [name for name in names if before.get(name) is None or before.get(name) != now.get(name)]
    return f"{', '.join(gone)} ended or restarted" if gone else None


def not_found_idle(printed: str, pod: str) -> str | None:
    """Return the error in a table of `kubectl dra idle`, in which only the claim made for the pod must be idle."""
    idle = [line for line in printed.splitlines() if "idle" in line.split()]
    return (
        None
        if len(idle) == 1 and idle[0].startswith(f"{pod}-")
        else f"expected the claim of {pod} to be idle: {printed}"
    )


def _restarts(pod: Obj) -> int:
    return sum(int(dig(each, "restartCount", default=0)) for each in entries(pod, "status", "containerStatuses"))
