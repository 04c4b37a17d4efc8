"""The probes of a first session: what their judges conclude from facts of a GPU."""

from typing import Any

import pytest

from dra_driver.diagnose.hardware.first_gpu import LISTS, OLDER, PROBES, PROCESSES
from dra_driver.diagnose.hardware.session import CHECKS
from dra_driver.diagnose.hardware.survey import Consent, choose, skip_reason
from dra_driver.diagnose.hardware.values import Reading, judged
from dra_driver.hardware.gpu.nvml.probes import MEMORY_V2
from tests.unit.diagnose.hardware import facts

NOW, PID, OTHER, GIB = 1_700_000_000_000_000, 4711, 4712, 2**30
BY_NUMBER = {probe.number: probe for probe in PROBES}


def usage(
    pids: tuple[int, ...] = (PID,), *, behind_s: float = 0.2, sm: int = 97, used: int = 5 * GIB, **more: Any
) -> dict[str, Any]:
    stamps = [NOW - int(behind_s * 1e6) - 10**6 * age for age in range(3)]
    samples = [{"pid": pid, "timeStamp": stamp, "smUtil": sm, **more} for pid in pids for stamp in stamps]
    empty: dict[str, Any] = {name: {"value": []} for name in LISTS}
    return empty | {
        LISTS[0]: {"value": [{"pid": pid, "memory": 4 * GIB} for pid in pids]},
        PROCESSES: {"value": samples},
        OLDER: {"code": 3},
        "cpu_us": {"value": NOW},
        "rates": {"value": {"gpu": sm, "memory": 1}},
        MEMORY_V2: {"value": {"used": used}},
        **{engine: {"value": [0, 100]} for engine in ("encoder", "decoder", "jpeg", "ofa")},
    }


LOAD = {"pid": PID, "codes": {"cuInit": 0}}
FAULT = {"codes": {"cuCtxSynchronize": 700}, "error": "cuCtxSynchronize failed with code 700"}
EVENT = {"eventType": 8, "eventData": 31, "gpuInstanceId": 0xFFFFFFFF, "computeInstanceId": 0xFFFFFFFF}
VIEWS = {"load": LOAD, "host": usage(), "namespace": usage(())}


def engines(**used: int) -> dict[str, Any]:
    fields = {"encoder": "encUtil", "decoder": "decUtil", "jpeg": "jpgUtil"}
    run = {"pid": PID, "status": None, "output": ""}
    own: dict[str, dict[str, Any]] = {engine: {field: used.get(engine, 60)} for engine, field in fields.items()}
    return {engine: run | {"looks": [usage(sm=0, **own[engine])]} for engine in fields}


def bursts(seen: int) -> dict[str, Any]:
    counted = {
        PROCESSES: {"code": None, "samples": 60, "above 0": seen},
        OLDER: {"code": 3, "samples": 0, "above 0": 0},
    }
    return {"load": LOAD} | {f"every {period} s": counted for period in (2, 10, 30)}


def links(mode: list[int], up: int) -> dict[str, Any]:
    states = {f"nvlink {n} state": {"value": int(n < up), "ms": 1} if n < 18 else {"code": 2} for n in range(36)}
    return {"0": {"mode": {"value": mode}} | states}


def shared(used: int) -> dict[str, Any]:
    both = usage((PID, OTHER), used=used)
    return {"load": LOAD, "pids": [PID, OTHER], "before": usage((), used=GIB), "both": both}


def held(files: int, references: int, **more: object) -> dict[str, Any]:
    return {"files": [f"/dev/nvidia{n}" for n in range(files)], "references": references, **more}


def detached(files: int, *, free: bool) -> dict[str, Any]:
    after = held(files, 2 + files, free=free, seconds=1.5)
    return {"before": held(0, 2), "waiting": held(2, 4), "detached": after}


NO_CODE = {"value": 1, "ms": 1}


@pytest.mark.parametrize(
    ("number", "found", "verdict", "text"),
    [
        (15, {"load": LOAD, "looks": [usage()]}, "ok", "offset 0.20 to 0.20 s, samples of 2.0 s"),
        (15, {"load": LOAD, "looks": [usage(behind_s=3600)]}, "differs", "3600.0 s behind the CPU's clock"),
        (15, {"load": LOAD, "looks": [usage(())]}, "cannot tell", "no samples of a busy process"),
        (15, {"load": {"error": "cuInit failed with code 999"}}, "cannot tell", "cuInit failed with code 999"),
        (16, VIEWS, "ok", f"memory of process {PID}: {4 * GIB}; PID namespace: Compute 0"),
        (16, {**VIEWS, "host": usage((OTHER,))}, "differs", f"process {PID} is not listed on the host, only [{OTHER}]"),
        (16, {**VIEWS, "host": usage(sm=0)}, "differs", "no utilisation call reports the busy process"),
        (17, {**VIEWS, "namespace": usage()}, "differs", f"PID namespace lists [{PID}]"),
        (17, {**VIEWS, "namespace": {"error": "unshare: not permitted"}}, "cannot tell", "unshare: not permitted"),
        (18, engines(), "ok", "decoder 60 % and SM 0 % of the process"),
        (18, engines(decoder=0), "differs", "decoder: 0 % of the process, 0 % of the GPU"),
        (18, engines() | {"jpeg": {"status": 1, "looks": [], "output": "no mjpeg_cuvid"}}, "cannot tell", "no mjpeg"),
        (19, bursts(4), "ok", "every 30 s: 4 of 60, 0 of 0"),
        (19, bursts(0), "differs", "every 30 s: no sample above 0"),
        (19, {"load": LOAD}, "cannot tell", "no utilisation call answers"),
        (20, shared(9 * GIB), "ok", "2 processes with 8192 MiB in sum; the GPU has 8192 MiB more in use than before"),
        (20, shared(5 * GIB), "differs", "processes have 8192 MiB in sum, the GPU 4096 MiB more than before"),
        (20, {**shared(GIB), "both": usage(())}, "cannot tell", "memory of processes {}"),
        (21, {"load": FAULT, "events": [{"value": EVENT}]}, "ok", "XIDs 31 with the ids of no instance"),
        (21, {"load": FAULT, "events": [{"value": {**EVENT, "gpuInstanceId": 0}}]}, "differs", "XID 31 with ids 0 and"),
        (
            21,
            {"load": FAULT, "events": [{"value": {**EVENT, "eventData": 13}}, {"code": 10}]},
            "differs",
            "XIDs 13, then code 10",
        ),
        (21, {"load": LOAD, "events": [{"value": EVENT}]}, "cannot tell", "no illegal access"),
        (22, links([0, 0], 18), "ok", "GPU 0: MIG mode [0, 0]: 18 up, 18 code 2"),
        (22, links([1, 1], 0), "ok", "18 down, 18 code 2"),
        (22, links([1, 1], 2), "differs", "2 links up in MIG mode"),
        (23, detached(0, free=True), "ok", "waiting 2 (4), detached 0 (2); 1.5 s"),
        (23, detached(1, free=False), "differs", "not free after 1.5 s; still open: /dev/nvidia0"),
        (
            24,
            {"root": {"a": NO_CODE, "b": {"code": 3}}, "unprivileged": {"a": NO_CODE}},
            "ok",
            "1 of 2 reads answer root",
        ),
        (24, {"root": {"a": NO_CODE}, "unprivileged": {"a": {"code": 4}}}, "differs", "a: code 4"),
        (24, {"root": {"a": NO_CODE}, "unprivileged": {"error": "no end"}}, "cannot tell", "unprivileged: no end"),
    ],
)
def test_a_probe_concludes(number: int, found: dict[str, Any], verdict: str, text: str) -> None:
    record = judged(BY_NUMBER[number], Reading(facts=found), {})
    assert (record.verdict, text in record.finding.seen) == (verdict, True), record.finding
    assert record.decides


def test_an_illegal_access_needs_consent() -> None:
    survey = facts.survey()
    choice = choose(survey, Consent())
    assert "allow it with --allow-xid" in skip_reason(BY_NUMBER[21], survey, Consent(), choice)
    assert skip_reason(BY_NUMBER[21], survey, Consent(xid=True), choice) == ""


def test_probes_follow_the_checks_and_end_within_three_minutes() -> None:
    assert [probe.number for probe in (*CHECKS, *PROBES)] == list(range(1, 25))
    assert all(probe.limit_s <= 180 for probe in PROBES)


@pytest.mark.parametrize("number", BY_NUMBER)
def test_a_probe_without_facts_cannot_tell(number: int) -> None:
    assert judged(BY_NUMBER[number], Reading(), {}).verdict in {"cannot tell", "skipped"}
