"""Prepare and unprepare of the driver under test, with its faults, and its slices. The state is one JSON file."""

import itertools
import json
import re
import threading
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any

from dra_driver.core.errors import KubernetesApiError, NotFoundError
from dra_driver.core.files import replace_file
from dra_driver.kube import paths
from dra_driver.kube.rest import RestClient

Wire = dict[str, Any]
PLAIN = 34
_seconds = itertools.count()
SINCE = "2026-01-02T03:04:05Z"


def published(driver: str, node: str, node_uid: str, faults: Collection[str], generation: int = 1) -> list[Wire]:
    """The slices of the node's pool: devices, then counters."""
    pool_name = node if "pool-named-like-node" in faults else f"{node}/{driver}"
    count = 3 if "wrong-slice-count" in faults else 2
    pool = {"name": pool_name, "generation": generation, "resourceSliceCount": count}
    return [_slice(driver, node, node_uid, pool, faults, at, content) for at, content in enumerate(_contents(faults))]


def _contents(faults: Collection[str]) -> list[Wire]:
    if "one-device" in faults:  # no fault: the smallest driver
        return [{"devices": [{"name": "unit-0"}]}, {"devices": []}]
    if "too-many-devices" in faults:
        return [{"devices": [{"name": f"unit-{at}"} for at in range(100)]}, {"devices": [{"name": "last"}]}]
    if "repeated-device-name" in faults:
        return [{"devices": [{"name": "unit-0"}]}, {"devices": [{"name": "unit-0"}]}]
    name = "forgotten" if "missing-counters" in faults else "card"
    counters = {"name": name, "counters": {"memory": {"value": "8Gi"}}}
    return [{"devices": _devices(faults)}, {"sharedCounters": [counters]}]


def _devices(faults: Collection[str]) -> list[Wire]:
    memory = {"value": "8Gi", "requestPolicy": {"default": "1Gi", "validRange": {"min": "1Gi", "step": "1Gi"}}}
    shared = {"name": "shared-0", "allowMultipleAllocations": True, "capacity": {"memory": memory}}
    use = {"counterSet": "card", "counters": {"memory": {"value": "4Gi"}}}
    whole = {"counterSet": "card", "counters": {"memory": {"value": "8Gi"}}}
    taint = {"key": "conformance.example.com/ill", "value": "1", "effect": "NoExecute", "timeAdded": SINCE}
    if "new-taint-times" in faults:
        taint["timeAdded"] = f"2026-01-02T03:04:{next(_seconds) % 60:02}Z"
    return [
        *({"name": f"unit-{at}"} for at in range(PLAIN - ("restarted" in faults))),
        shared,
        *({"name": f"part-{at}", "consumesCounters": [use]} for at in range(2)),
        {"name": "card-0", "consumesCounters": [whole]},
        {"name": "ill-0", "taints": [taint]},
    ]


def _slice(driver: str, node: str, node_uid: str, pool: Wire, faults: Collection[str], at: int, content: Wire) -> Wire:  # noqa: PLR0917 - all parts of one slice
    owner = {"apiVersion": "v1", "kind": "Node", "name": node, "uid": node_uid, "controller": True}
    metadata: Wire = {"name": f"{at:05x}-{driver}-{node}"}
    if "no-owner" not in faults:
        metadata["ownerReferences"] = [owner]
    spec = {"driver": driver, "pool": pool, "nodeName": node, **content}
    return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": metadata, "spec": spec}


_UID = re.compile(r"[0-9a-f-]{36}")
_BESIDE = re.compile(r"\.\./[^/]+")
NODES = [path for path in map("/dev/{}".format, ("null", "zero", "full", "random", "urandom")) if Path(path).exists()]
"""Device nodes that every machine has, also for users other than root."""
EXCLUDE = {"card-0": {"part-0", "part-1"}, "part-0": {"card-0"}, "part-1": {"card-0"}}
HUGE = "x" * (16 << 20)


def _node(**fields: object) -> Wire:
    return {"deviceNodes": [fields]}


def _hook(**fields: object) -> Wire:
    return {"hooks": [{"hookName": "createContainer", **fields}]}


EDIT_FAULTS: dict[str, Wire] = {
    "old-cdi-version": _node(path="/dev/null", hostPath="/dev/null"),
    "missing-node": _node(path="/dev/no-such-node"),
    "node-is-a-file": _node(path="/etc/passwd"),
    "node-with-wrong-numbers": _node(path="/dev/null", type="c", major=1, minor=5),
    "node-without-driver": _node(path="/dev/no-such-node", type="c", major=4095, minor=0),
    "disk-node": _node(path="/dev/sda", type="b", major=8, minor=0),
    "memory-node": _node(path="/dev/gpu0", type="c", major=1, minor=1),
    "missing-hook": _hook(path="/no/such/hook"),
    "hook-is-no-program": _hook(path="/etc/passwd"),
    "hook-with-wrong-name": _hook(path="/bin/true", hookName="beforeStart"),
    "hook-with-relative-path": _hook(path="bin/true"),
    "missing-mount": {"mounts": [{"hostPath": "/no/such/folder", "containerPath": "/x"}]},
    "malformed-variable": {"env": ["NO_VALUE"]},
    "same-node": _node(path="/dev/null"),
    "all-nodes": {"deviceNodes": [{"path": path} for path in NODES]},
    "same-edits": {"deviceNodes": [], "hooks": []},
}
"""Edits of every device with the fault."""


class Crash(Exception):  # noqa: N818 - ends the process of the driver
    """The driver would die here."""


class Refused(Exception):  # noqa: N818 - an answer for the kubelet
    """Why a claim is not prepared."""


class Claims:
    """All claims of one driver in one folder. Thread-safe; a new instance over the folder is a restart."""

    def __init__(self, folder: Path, rest: RestClient, driver: str, node: str, faults: Collection[str]) -> None:
        self._cdi = folder / "cdi"
        self._file = folder / "state.json"
        self._rest = rest
        self._driver = driver
        self._faults = frozenset(faults)
        self._names = {device["name"] for device in _devices(())}
        self._lock = threading.Lock()  # guards the state and its file
        self._state: dict[str, list[Wire]] = {}
        if self._file.exists() and not self.has("forgets-claims"):
            self._state = json.loads(self._file.read_text())
        self._before = frozenset(self._state)
        self._started = frozenset(path.name for path in folder.glob("half-*"))
        self._folder = folder
        self._hook = folder / "plugin" / "hook"
        self._hook.touch(mode=0o755)
        self.of_this_call: frozenset[str] = frozenset()
        self.broken: set[str] = set()
        if self.has("clears-files-on-start"):
            self._remove_cdi("*")
        self._ended: set[str] = set()
        self._calls = 0
        self.stopped = threading.Event()

    def has(self, fault: str) -> bool:
        return fault in self._faults

    def prepare(self, namespace: str, name: str, uid: str) -> list[Wire]:
        """The devices of the answer. Raises Refused and Crash."""
        if self.has("follows-uid") and _BESIDE.fullmatch(uid):
            (self._cdi / f"{uid}.state").touch()
        if not _UID.fullmatch(uid):
            raise (Crash if self.has("crashes-on-bad-uid") else Refused)(f"{uid[:40]!r} is no UID")
        if self.has("short-names") and len(name) > 100:
            raise Refused("the name is too long")
        self._half("half-prepared", uid)
        if self.has("double-grant-in-parallel"):
            self._planned(namespace, name, uid)
            self.stopped.wait(0.1)
        with self._lock:
            known = uid in self._state
            if not known:
                self._state[uid] = self._planned(namespace, name, uid)
                self._save()
            devices = self._state[uid]
            cached = (self.has("answers-from-cache") and uid in self._ended) or (known and self.has("trusts-files"))
            if not cached:
                self._write_cdi(uid, devices)
        self._calls += 1
        if self.has("answers-other-ids"):
            return [{**device, "cdi": [f"{one}.other" for one in device["cdi"]]} for device in devices]
        if self.has("no-cdi-ids"):
            return [{**device, "cdi": []} for device in devices]
        if self.has("new-ids-after-restart"):
            return [{**device, "cdi": [f"{one}.{id(self)}" for one in device["cdi"]]} for device in devices]
        if self.has("answer-changes"):
            return [{**device, "cdi": [f"{one}.{self._calls}" for one in device["cdi"]]} for device in devices]
        return devices

    def unprepare(self, namespace: str, name: str, uid: str) -> None:
        if self.has("deletes-by-uid"):
            (self._cdi / f"{uid[:300]}.json").unlink(missing_ok=True)
        if self.has("unprepare-needs-claim"):
            self._claim(namespace, name, uid)
        if self.has("unprepare-by-same-process") and uid in self._before:
            raise Refused(f"claim {uid} is of another process")
        self._half("half-unprepared", uid)
        with self._lock:
            self._end_others(uid)
            refuses = self.has("unprepare-unknown-fails") or (self.has("unprepare-once") and uid in self._ended)
            if uid not in self._state and refuses:
                raise Refused(f"claim {uid} is not prepared")
            self._ended.add(uid)
            if not self.has("keeps-device"):
                self._state.pop(uid, None)
                self._save()
            self._remove_cdi("*" if self.has("removes-all-files") else uid)

    def _half(self, fault: str, uid: str) -> None:
        """With the fault: note that work on a claim has begun, work long, and never remove a note of before."""
        if not self.has(fault):
            return
        note = self._folder / f"half-{uid}"
        if note.name in self._started:
            raise Refused(f"work on claim {uid} was interrupted")
        note.touch()
        self.stopped.wait(0.4)
        if not self.stopped.is_set():
            note.unlink()

    def _end_others(self, uid: str) -> None:
        own = {device["device"]: device for device in self._state.get(uid, ())}
        for other, devices in list(self._state.items()):
            for device in devices:
                shared = device["share"] and self.has("share-ends-all")
                admin = own.get(device["device"], {}).get("admin") and self.has("admin-ends-user")
                if other != uid and device["device"] in own and (shared or admin):
                    self._remove_cdi(other)

    def prepared_devices(self) -> list[Wire]:
        with self._lock:
            return [device for devices in self._state.values() for device in devices]

    def known(self, uid: str) -> bool:
        with self._lock:
            return uid in self._state

    def hang(self) -> None:
        self.stopped.wait(60.0)

    def _planned(self, namespace: str, name: str, uid: str) -> list[Wire]:
        try:
            claim = self._claim(namespace, name, uid)
        except Refused:
            if self.has("trusts-missing-claim"):
                return []
            raise
        allocation = (claim.get("status") or {}).get("allocation")
        if allocation is None:
            if self.has("ignores-allocation"):
                return []
            raise Refused(f"claim {namespace}/{name} is not allocated")
        for entry in allocation["devices"].get("config") or ():
            if entry["opaque"]["driver"] != self._driver and self.has("refuses-foreign-config"):
                raise Refused("unknown configuration")
        if self.has("few-devices") and len(allocation["devices"]["results"]) > 8:
            raise Refused("too many devices")
        every, takes_all = allocation["devices"].get("results") or (), self.has("takes-all-results")
        results = [result for result in every if result["driver"] == self._driver or takes_all]
        for result in results:
            self._check_device(result)
        if self.has("one-share-per-claim"):
            results = list({result["device"]: result for result in results}.values())
        devices = [self._device(uid, at, result) for at, result in enumerate(results)]
        pod_claim = (claim["metadata"].get("annotations") or {}).get("resource.kubernetes.io/pod-claim-name")
        for request in dict.fromkeys(result["request"] for result in results):
            mine = [at for at, result in enumerate(results) if result["request"] == request]
            devices[mine[0]]["metadata"] = self._metadata(claim, request, [results[at] for at in mine], pod_claim)
        return devices

    def _metadata(self, claim: Wire, request: str, results: list[Wire], pod_claim: str | None) -> Wire:
        """The content of a request's metadata file, and its place in containers."""
        meta = {key: claim["metadata"][key] for key in ("name", "namespace", "uid")} | {"generation": 1}
        named = [{"driver": self._driver, "pool": one["pool"], "name": one["device"]} for one in results]
        if self.has("metadata-of-all"):
            named.append({**named[0], "name": "unit-33"})
        content = {"kind": "DeviceMetadata", "metadata": meta, "requests": [{"name": request, "devices": named}]}
        if pod_claim:
            content["podClaimName"] = pod_claim
        under_claim = not pod_claim or self.has("metadata-under-claim")
        place = f"resourceclaims/{meta['name']}" if under_claim else f"resourceclaimtemplates/{pod_claim}"
        part = request if self.has("metadata-with-subrequest") else request.partition("/")[0]
        return {"content": content, "path": f"{place}/{part}/{self._driver}-metadata.json"}

    def _write_metadata(self, uid: str, at: int, found: Wire) -> Wire:
        """Write the file; returns its mount."""
        if self.has("metadata-counts"):
            found["content"]["metadata"]["generation"] += 1
        versions = ["v9"] if self.has("metadata-of-future") else ["v1beta1", "v1alpha1"]
        objects = [{"apiVersion": f"metadata.resource.k8s.io/{each}", **found["content"]} for each in versions]
        text = json.dumps(objects) if self.has("metadata-in-array") else "\n".join(map(json.dumps, objects))
        path = self._folder / f"metadata-{uid}-{at}"
        replace_file(path, text.encode(), mode=0o600 if self.has("metadata-private") else 0o644)
        inside = f"/var/run/kubernetes.io/dra-device-attributes/{found['path']}"
        return {"hostPath": str(path), "containerPath": inside, "options": ["ro", "bind"]}

    def _claim(self, namespace: str, name: str, uid: str) -> Wire:
        try:
            claim = self._rest.get(paths.resource_claim(namespace, name))
        except (NotFoundError, ValueError) as error:
            raise Refused(f"claim {namespace}/{name} does not exist") from error
        except KubernetesApiError as error:
            raise Refused(str(error)) from error
        if claim["metadata"]["uid"] != uid and not self.has("ignores-uid"):
            raise Refused(f"claim {namespace}/{name} is another object")
        return claim

    def _check_device(self, result: Wire) -> None:
        if result["driver"] != self._driver:
            return
        if result["device"] not in self._names and not self.has("accepts-any-device"):
            raise Refused(f"device {result['device']} does not exist")
        admin, takes = bool(result.get("adminAccess")), self.has("admin-takes-device")
        if admin and self.has("admin-crashes"):
            raise ZeroDivisionError
        if (admin and not (self.has("admin-needs-free-device") or takes)) or self.has("double-grant"):
            return
        if result["device"] == "shared-0" and not self.has("exclusive-shares"):
            return
        same = {result["device"]} | (set() if self.has("ignores-counters") else EXCLUDE.get(result["device"], set()))
        if self.has("double-grant-in-parallel"):
            return
        for uid, devices in self._state.items():
            if self.has("double-grant-in-call") and uid in self.of_this_call:
                continue
            if any(one["device"] in same and (takes or not one["admin"]) for one in devices):
                raise Refused(f"device {result['device']} is prepared for claim {uid}")

    def _device(self, uid: str, at: int, result: Wire) -> Wire:
        request = result["request"] if self.has("keeps-subrequests") else result["request"].partition("/")[0]
        prefix = "" if self.has("unqualified-cdi-name") else f"{self._driver}/device="
        return {
            "requests": ["other" if self.has("wrong-request") else request],
            "pool": result["pool"],
            "device": "unit-33" if self.has("wrong-device") else result["device"],
            "cdi": [f"{prefix}{uid}-{at}"],
            "share": None if self.has("no-share-id") else result.get("shareID"),
            "admin": bool(result.get("adminAccess")),
        }

    def _write_cdi(self, uid: str, devices: list[Wire]) -> None:
        if self.has("no-cdi-file") or not devices or self.stopped.is_set():
            return
        named = [(one.partition("=")[2] or one, device) for device in devices for one in device["cdi"]]
        mounts = [self._write_metadata(uid, at, one["metadata"]) for at, one in enumerate(devices) if "metadata" in one]
        devices = [{"name": name, "containerEdits": self._edits(uid, device["device"])} for name, device in named]
        edits = devices[0]["containerEdits"]
        if edits:
            edits["mounts"] = [*edits.get("mounts", ()), *mounts]
        version = "9.0.0" if self.has("unknown-cdi-version") else "0.3.0" if self.has("old-cdi-version") else "0.5.0"
        document = {"cdiVersion": version, "kind": f"{self._driver}/device", "devices": devices}
        if self.has("piles-up-files"):
            (self._cdi / f"extra-{time.monotonic_ns()}.json").write_text("{}")
        text = json.dumps(document)[: 20 if self.has("broken-json") else None]
        path = self._cdi / f"{self._driver}-{uid[::-1] if self.has('hides-files') else uid}.json"
        if self.has("late-cdi-file"):
            threading.Thread(target=lambda: self.stopped.wait(0.2) or path.write_text(text), daemon=True).start()
            return
        replace_file(path, text.encode())

    def _edits(self, uid: str, device: str) -> Wire:
        number = sum(device.encode())
        node: Wire = {"path": NODES[number % len(NODES)]}
        hook: Wire = {"hookName": "createContainer", "path": str(self._hook)}
        edits: Wire = {"env": [f"CLAIM={uid}"], "deviceNodes": [node], "hooks": [hook]}
        for fault, change in EDIT_FAULTS.items():
            if self.has(fault):
                edits |= change
        return {} if self.has("invalid-cdi-file") else edits

    def _remove_cdi(self, which: str) -> None:
        if not self.has("leaves-files"):
            for path in self._cdi.glob(f"{self._driver}-{which}.json"):
                path.unlink(missing_ok=True)
        if not self.has("metadata-stays"):
            for path in self._folder.glob(f"metadata-{which}-*"):
                path.unlink(missing_ok=True)

    def _save(self) -> None:
        if not self.stopped.is_set():  # a killed process writes nothing
            replace_file(self._file, json.dumps(self._state).encode())
