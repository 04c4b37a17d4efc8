"""A chapter of the demonstration: three claims share one GPU, one takes more than its grant, and one does nothing.

Nothing is made up: a real usage exporter looks at simulated processes, its findings go by the node process and the
GpuNode to the controller, which evicts the one pod. That takes about 40 s, so the chapter has a cluster of its own,
which starts first; the rest of the demonstration runs meanwhile, between its two parts. The controller starts with the
first part, so that nothing is evicted before it was shown.
"""

import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Final

from dra_driver.core.errors import DraError, RetryableError
from dra_driver.sim.apiserver.jsonvalue import Obj, dig, entries, utc_now
from dra_driver.sim.apiserver.kinds import EVENTS, PODS
from dra_driver.sim.cluster import Cluster
from dra_driver.sim.demo.chapter import WAIT_S, Say, end_namespace
from dra_driver.sim.demo.render import table
from dra_driver.sim.node.node_process import ControllerSubprocess
from dra_driver.sim.objects import is_ready

TITLE: Final = "--- three claims share one GPU"
NODES: Final = {"gpu-u": "1xa100-sxm4-40gb"}
NAMESPACE: Final = "demo-usage"
POLICY: Final = Path("examples/usage/shares-that-hold.yaml")
PODS_OF_CHAPTER: Final = Path("examples/usage/three-shares.yaml")
USED_GIB: Final = {"modest": 8, "greedy": 20, "sleepy": 0}
"""What each pod uses of its 12 GiB, by the annotations of the example."""
GREEDY, SLEEPY = "greedy", "sleepy"
TOLD: Final = ("GpuMemoryOverGrant", "GpuEvictionAnnounced")
EVICTED: Final = "GpuEviction"
IDLE_S: Final = 20
EVICTED_S: Final = 120.0
_GIB: Final = 2**30
_COMMAND_S: Final = 60.0


class UsageChapter:
    """`told` and `ended` in this order, each once, inside the context, which starts and stops the cluster.

    ``root`` is the folder with the examples. ``problem`` is the first unmet expectation, "" without one; later parts do
    nothing then.
    """

    def __init__(self, root: Path, say: Say) -> None:
        self._root, self._say = root, say
        self._cluster = Cluster(NODES, policies=[root / POLICY], usage=True)
        self._children = ExitStack()
        self._before: dict[str, str] = {}
        self.problem = ""

    def __enter__(self) -> "UsageChapter":
        try:
            self._children.callback(self._cluster.stop)
            self._start()
        except DraError as error:
            self.problem = f"the cluster with usage exporters does not start: {error}"
        except BaseException:
            self._children.close()
            raise
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._children.close()

    def told(self) -> None:
        """Expect that the exporter sees what each pod uses, and that the one over its grant is told."""
        self._part("one is over its grant, and is told", self._told)

    def ended(self) -> None:
        """Expect that it is evicted and the others are not, and that the idle claim is found."""
        self._part("it is evicted, and the others go on", self._ended)

    def _start(self) -> None:
        self._cluster.start()
        self._cluster.apply(self._root / "deploy/base/deviceclasses.yaml")
        self._cluster.apply(self._root / PODS_OF_CHAPTER, NAMESPACE)

    def _start_controller(self) -> None:
        log = self._cluster.folder / "controller.log"
        controller = ControllerSubprocess(self._cluster.kubeconfig, log, ["--evict-over-grant", "true"])
        controller.start()
        self._children.callback(controller.stop)

    def _part(self, title: str, story: Callable[[], None]) -> None:
        self._say(f"{TITLE}: {title}")
        try:
            if not self.problem:
                story()
        except DraError as error:
            self.problem = str(error)
        if self.problem:
            self._say(f"    problem  {self.problem}\n")

    def _told(self) -> None:
        self._expect(lambda: not_running(self._running(), USED_GIB), "the pods to run")
        self._expect(lambda: unlike_used(self._seen(), USED_GIB), "the exporter to see what each pod uses")
        self._before = self._running()
        self._start_controller()
        self._say(f"    {', '.join(self._before)} have 12 GiB of one GPU each. The policy, {POLICY},")
        self._say("    evicts a pod whose claim has more than that for 10 s after the pod was told.\n")
        self._kubectl("usage")
        self._expect(lambda: not_told(self._events(GREEDY), *TOLD), "the pod over its grant to be told", EVICTED_S)
        self._say_events(GREEDY, *TOLD)
        self._say("    Examples go on meanwhile.\n")

    def _ended(self) -> None:
        self._expect(lambda: not_told(self._events(GREEDY), EVICTED), "the pod over its grant to be evicted", EVICTED_S)
        self._expect(lambda: "it still runs" if GREEDY in self._pods() else None, "the evicted pod to end")
        self._say_events(GREEDY, EVICTED)
        wanted = {name: used for name, used in USED_GIB.items() if name != GREEDY}
        self._expect(lambda: unlike_used(self._seen(), wanted), "the exporter to see that it ended")
        self._expect(lambda: disturbed(self._before, self._running(), wanted), "the other pods to go on")
        for name in wanted:
            if said := [reason for reason in self._events(name) if reason in (*TOLD, EVICTED)]:
                raise RetryableError(f"pod {name} keeps its grant, and was told {', '.join(said)}")
        self._say(f"$ kubectl get pods -n {NAMESPACE}\n{table(PODS, self._pods().values(), utc_now())}\n")
        self._kubectl("usage")
        self._expect(lambda: not_idle_yet(self._answer(), SLEEPY), "the exporter to see the claim unused for a while")
        idle = self._kubectl("idle", "--idle-for", f"{IDLE_S}s")
        if problem := not_found_idle(idle, SLEEPY):
            raise RetryableError(problem)
        end_namespace(self._cluster, NAMESPACE)

    def _kubectl(self, *command: str) -> str:
        """Run ``kubectl dra`` as a person would, and say what it prints. Raises RetryableError when it fails."""
        arguments = [*command, "-n", NAMESPACE]
        whole = [sys.executable, "-m", "dra_driver.kubectl.commands.kubectl", *arguments]
        whole += ["--kubeconfig", str(self._cluster.kubeconfig)]
        try:
            done = subprocess.run(whole, cwd=self._root, capture_output=True, text=True, timeout=_COMMAND_S, check=True)
        except subprocess.CalledProcessError as error:
            raise RetryableError(f"kubectl dra {' '.join(arguments)} failed: {error.stderr.strip()}") from error
        except (OSError, subprocess.TimeoutExpired) as error:
            raise RetryableError(f"kubectl dra {' '.join(arguments)} did not run: {error}") from error
        self._say(f"$ kubectl dra {' '.join(arguments)}\n{done.stderr}{done.stdout}")
        return done.stdout

    def _seen(self) -> dict[str, float]:
        """GiB that the exporter sees by pod; {} while it does not answer."""
        return used_by_pod(self._answer())

    def _answer(self) -> Mapping[str, object]:
        """The exporter's ``/usage``; {} while it does not answer."""
        exporter = next(iter(self._cluster.nodes.values())).exporter
        try:
            return exporter.usage() if exporter is not None else {}
        except RetryableError:
            return {}

    def _pods(self) -> dict[str, Obj]:
        return {pod["metadata"]["name"]: pod for pod in self._cluster.store.list(PODS, NAMESPACE).items}

    def _running(self) -> dict[str, str]:
        """UIDs of pods that run and were never restarted, by name."""
        return {
            name: pod["metadata"]["uid"] for name, pod in self._pods().items() if is_ready(pod) and _restarts(pod) == 0
        }

    def _events(self, pod: str) -> dict[str, str]:
        """What was said about a pod, by reason."""
        return {
            str(item["reason"]): str(item["message"])
            for item in self._cluster.store.list(EVENTS, NAMESPACE).items
            if item["involvedObject"].get("kind") == "Pod" and item["involvedObject"].get("name") == pod
        }

    def _say_events(self, pod: str, *reasons: str) -> None:
        events = self._events(pod)
        self._say("".join(f"    event    {pod}: {reason}: {events[reason]}\n" for reason in reasons))

    def _expect(self, check: Callable[[], str | None], what: str, within_s: float = WAIT_S) -> None:
        self._cluster.wait(check, within_s, what)


def used_by_pod(answer: Mapping[str, object]) -> dict[str, float]:
    """GiB that each pod uses, from an exporter's ``/usage``; claims whose use is not known are left out."""
    return {
        pod: device["usedBytes"] / _GIB
        for claim in entries(answer, "claims")
        for device in claim["devices"]
        for pod in claim["pods"]
        if device.get("usedBytes") is not None
    }


def not_idle_yet(answer: Mapping[str, object], pod: str) -> str | None:
    """Why a pod's claim is not idle for `IDLE_S` in an exporter's ``/usage``; None if it is."""
    of_pod = [device for claim in entries(answer, "claims") if pod in claim["pods"] for device in claim["devices"]]
    seen = [device.get("idleSeconds") for device in of_pod]
    return None if seen and all((each or 0) >= IDLE_S for each in seen) else f"it saw {pod} unused for {seen} s"


def unlike_used(seen: Mapping[str, float], wanted: Mapping[str, float]) -> str | None:
    """How use differs from what is expected; None if it does not."""
    return None if seen == wanted else f"it sees {dict(seen) or 'nothing'} (GiB by pod)"


def not_running(running: Iterable[str], names: Iterable[str]) -> str | None:
    """Which of the pods ``names`` are not among those that run."""
    return ", ".join(sorted({*names} - {*running})) or None


def not_told(events: Mapping[str, str], *reasons: str) -> str | None:
    """Which events are missing."""
    missing = [reason for reason in reasons if reason not in events]
    return f"no event {', '.join(missing)}, only {', '.join(events) or 'none'}" if missing else None


def disturbed(before: Mapping[str, str], now: Mapping[str, str], names: Mapping[str, object]) -> str | None:
    """Which of the pods ``names`` did not run all the time: UIDs by name, before and now."""
    gone = [name for name in names if before.get(name) is None or before.get(name) != now.get(name)]
    return f"{', '.join(gone)} ended or restarted" if gone else None


def not_found_idle(printed: str, pod: str) -> str | None:
    """What is wrong with a table of `kubectl dra idle`: the pod's claim is the one idle claim in it."""
    idle = [line for line in printed.splitlines() if "idle" in line.split()]
    return (
        None if len(idle) == 1 and idle[0].split()[-1] == pod else f"expected the claim of {pod} to be idle: {printed}"
    )


def _restarts(pod: Obj) -> int:
    return sum(int(dig(each, "restartCount", default=0)) for each in entries(pod, "status", "containerStatuses"))
