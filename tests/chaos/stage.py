"""One node under a fault: a node process behind a proxy, prepared claims of every form, and the time until it is
normal: the slices are complete, ``/readyz`` is ready, and a new claim is prepared and unprepared. Prepared claims must
stay."""

import json
import os
import re
import ssl
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import urllib3

from tests.fakes.kubelet import register
from tests.fakes.live_claims import Obj, Scheduler, gpu, parameters, partition, share
from tests.fakes.live_node import LiveNode, until
from tests.fakes.recording_proxy import RecordingProxy
from tests.harness.servers import free_port

FOLDER = "FAULT_RECORDS"
MOST_SEEN = 240
SPEC = "6xh100-sxm5-80gb"
CUT, WHOLE, IN_TURNS, BY_MPS, SPARE = 0, 1, 2, 3, 4
"""Minors: the GPU of the partition, of the whole GPU, of time-sliced shares, of shares by MPS, and for new claims."""
POLICY = f"""
apiVersion: gpu.dra-driver.io/v1alpha1
kind: GpuPolicy
metadata: {{name: in-turns}}
spec:
  select: {{minors: [{IN_TURNS}]}}
  sharing: {{strategy: TimeSlicing, interval: Long, maxShares: 4}}
---
apiVersion: gpu.dra-driver.io/v1alpha1
kind: GpuPolicy
metadata: {{name: by-mps}}
spec:
  select: {{minors: [{BY_MPS}]}}
  sharing: {{strategy: MPS, maxShares: 4}}
"""
NORMAL_S = 45.0
SHORT_S = 6.0  # time limit of calls during a fault: long enough for an answer, short enough for a test


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultRecord:
    """The record of one test; ``fault`` is the row of docs/internals/faults/faults.toml."""

    fault: str
    test: str

    def write(self, *, seconds: float, seen: str, kept: int, of: int) -> None:
        """``seconds`` until normal; what was ``seen``; how many ``of`` the prepared claims were ``kept``."""
        assert seen, f"{self.fault}: nothing was seen"
        folder = os.environ.get(FOLDER)
        if not folder:
            return
        seen = " ".join(seen.split())
        found = {
            "fault": self.fault,
            "test": self.test,
            "seconds": round(seconds, 2),
            "seen": seen if len(seen) <= MOST_SEEN else f"{seen[: MOST_SEEN - 1]}…",
            "kept": kept,
            "of": of,
        }
        name = "".join(letter if letter.isalnum() else "-" for letter in self.test)[-150:]
        (Path(folder) / f"{name}.json").write_text(json.dumps(found, indent=1))


class Stage:
    def __init__(self, *, spec: str = SPEC, mps: bool = True, wrap: Sequence[str] = (), on_disk: bool = False) -> None:
        """``wrap`` is put before the command of the node process; ``on_disk``: see LiveNode."""
        self.node = LiveNode(spec, policy=POLICY, mps=mps, on_disk=on_disk)
        self.proxy = RecordingProxy(self.node.root / "kubeconfig")
        self.http_port = free_port()
        self._wrap = list(wrap)
        self._mps = mps
        self._registered = 0
        self._cluster: Mapping[str, str] = {}
        self.held: dict[str, tuple[Obj, list[Any], bytes]] = {}
        """The prepared claims by form, with the answer and the CDI file that they got."""
        self.prepared = 0
        """How many claims the fault could take: those of `held`, without those that the test itself ended."""
        self._scheduler: Scheduler | None = None

    def __enter__(self) -> "Stage":
        self.proxy.__enter__()
        try:
            self._direct(self.node)
            self.node.__enter__()
            self._prepare_all()
        except BaseException:
            self.__exit__()
            raise
        return self

    def serve_tls(self, context: Callable[[], ssl.SSLContext], cluster: Mapping[str, str]) -> None:
        """Before the start: the node process comes over TLS; ``cluster`` are more fields of its kubeconfig."""
        self.proxy = RecordingProxy(self.node.root / "kubeconfig", context)
        self._cluster = cluster

    def _direct(self, node: LiveNode) -> None:
        command = node.process.command
        at = command.index("--kubeconfig") + 1
        command[at] = str(self.proxy.kubeconfig(node.root / "through-proxy", self._cluster))
        command += ["--http-addr", f"127.0.0.1:{self.http_port}"]
        command[:0] = self._wrap

    def _prepare_all(self) -> None:
        slicing = parameters("GpuConfig", strategy="TimeSlicing", timeSlicingConfig={"interval": "Long"})
        gpus = self.node.gpus
        wanted: dict[str, dict[str, Any]] = {
            "partition": {"requests": [partition("1g.10gb", of=[gpus[CUT]])]},
            "whole": {"requests": [gpu(of=[gpus[WHOLE]])], "config": [slicing]},
            "share": {"requests": [share("10Gi", 20, strategy="TimeSlicing")]},
        }
        if self._mps:
            wanted["MPS share"] = {"requests": [share("10Gi", 20)]}
        for form, each in wanted.items():
            self.hold(form, *each["requests"], config=each.get("config", ()))

    def hold(self, form: str, *requests: Obj, config: Sequence[Obj] = ()) -> Obj:
        claim = self.scheduler.allocate_soon(*requests, config=config)
        answer = self.node.prepare(claim)
        assert answer.error == "", f"{form}: {answer.error}"
        self.held[form] = (claim, list(answer.devices), self.node.cdi_files()[claim["uid"]].read_bytes())
        self.prepared += 1
        return claim

    def lose(self, form: str) -> Obj:
        """The fault took this claim's devices: the page counts it as lost."""
        return self.held.pop(form)[0]

    def end(self, form: str) -> Obj:
        """The test ends this claim itself."""
        self.prepared -= 1
        return self.lose(form)

    @property
    def scheduler(self) -> Scheduler:
        if self._scheduler is None:
            self._scheduler = Scheduler(self.node)
        return self._scheduler

    def __exit__(self, *_: object) -> None:
        self.proxy.silent.clear()
        self.node.__exit__()
        self.proxy.__exit__()

    # --- what a person sees ---

    def readyz(self) -> tuple[int, str]:
        """Status and text of /readyz; (0, "") while the process does not answer."""
        try:
            answer = urllib3.request("GET", f"http://127.0.0.1:{self.http_port}/readyz", timeout=5.0, retries=False)
        except urllib3.exceptions.HTTPError:
            return 0, ""
        return answer.status, answer.data.decode().strip()

    def is_ready(self) -> bool:
        """Whether /readyz says so, once this stage has done what a kubelet does with a new registration socket."""
        with suppress(OSError, grpc.RpcError):
            if (found := self.node.registration.stat().st_ino) != self._registered:
                register(self.node.registration)
                self._registered = found
        return self.readyz()[0] == 200

    def logged(self, pattern: str) -> str:
        """The last line of the log with that pattern, without its time; "" without one."""
        lines = [line for line in self.node.log().splitlines() if re.search(pattern, line)]
        return lines[-1].partition(" ")[2] if lines else ""

    def wait_logged(self, pattern: str, within_s: float = 30.0) -> str:
        until(lambda: self.logged(pattern), f"{pattern!r} in the log: {self.node.log()[-2000:]}", within_s)
        return self.logged(pattern)

    # --- claims ---

    def spare_claim(self) -> Obj:
        """A claim for a GPU that no other claim has; not prepared yet."""
        return self.scheduler.allocate_soon(gpu(of=self.node.gpus[SPARE:]))

    def spare_claim_without_slices(self) -> Obj:
        return self.scheduler.force({"request": "gpu", "device": f"gpu-{SPARE}"}, requests=[gpu()])

    def prepare(self, claim: Obj, timeout_s: float = SHORT_S) -> str:
        """The error of a prepare, "" for success; the gRPC code's name where the process did not answer."""
        try:
            return str(self.node.prepare(claim, timeout_s).error)
        except grpc.RpcError as error:
            return str(error.code().name)

    def drop(self, claim: Obj) -> None:
        assert self.node.unprepare(claim) == ""
        self.scheduler.release(claim)

    def assert_intact(self, *, without: Sequence[str] = ()) -> None:
        for form, (claim, answer, document) in self.held.items():
            if form in without:
                continue
            assert self.node.states().get(claim["uid"]) == "prepared", form
            assert self.node.cdi_files()[claim["uid"]].read_bytes() == document, form
            again = self.node.prepare(claim)
            assert (again.error, list(again.devices)) == ("", answer), f"{form}: {again.error}"

    def assert_on_hardware(self) -> None:
        gpus = self.node.gpus
        if "partition" in self.held:
            assert [(found[0], found[1], found[3]) for found in self.node.instances()] == [(gpus[CUT], 19, 1)]
        if "MPS share" in self.held:
            until(lambda: len(self.node.mps_processes()) == 1, "one MPS daemon")

    # --- the way back ---

    def normal_after(self, since: float, within_s: float = NORMAL_S) -> float:
        """Seconds from ``since`` (monotonic) until the node is normal."""
        deadline = time.monotonic() + within_s
        self._wait(self.node._published, deadline, "complete slices")
        self._wait(self.is_ready, deadline, "readiness")
        claim = self.spare_claim()
        self._wait(lambda: self.prepare(claim, 45.0) == "", deadline, "a new claim to be prepared")
        seconds = time.monotonic() - since
        self.drop(claim)
        return seconds

    def _wait(self, holds: Callable[[], object], deadline: float, what: str) -> None:
        while not holds():
            assert time.monotonic() < deadline, f"no {what}: {self.readyz()}, {self.node.log()[-4000:]}"
            time.sleep(0.02)

    def finish(
        self, fault: FaultRecord, since: float, *, seen: str, at_least_s: float = 0.0, waited: Obj | None = None
    ) -> None:
        """End a test: all is normal, nothing is lost or left. ``waited`` is a claim whose prepare failed during the
        fault."""
        if waited is not None:
            what = f"the claim that waited: {self.node.log()[-2000:]}"
            until(lambda: self.prepare(waited, 45.0) == "", what, 60.0)
            self.drop(waited)
        seconds = max(at_least_s, self.normal_after(since))
        self.assert_intact()
        self.assert_on_hardware()
        kept = len(self.held)
        for claim, _, _ in self.held.values():
            self.drop(claim)
        self.held.clear()
        with suppress(AssertionError):
            until(lambda: not self.node.leftovers(), "a clean node", 10.0)
        assert self.node.leftovers() == []
        fault.write(seconds=seconds, seen=seen, kept=kept, of=self.prepared)
