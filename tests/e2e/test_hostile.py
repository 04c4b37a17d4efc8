"""Hostile but valid objects on a real API server: every command, the controller and the node process answer in time.

Each row of `ROWS` creates its objects beside a working pod and claim, asks every command and the web UI, and deletes
them. Prints a table of seconds and answers. Where this host is a node of the cluster, the pod runs there; on an API
server without a kubelet the Node, the pod and its allocation are written by hand:

    KUBECONFIG=... python -m pytest tests/e2e/test_hostile.py -n 0 -s -rs
    KUBECONFIG=... E2E_HOSTILE_SEED=7 python -m pytest tests/e2e/test_hostile.py -n 0 -s -k "claims-large"
"""

import http.cookiejar
import json
import os
import random
import re
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urljoin

import pytest

from dra_driver.config.status import node_status
from dra_driver.core.errors import AlreadyExistsError, ForbiddenError, InvalidObjectError, NotFoundError
from dra_driver.core.model.gpu_node import GpuNodeStatus
from dra_driver.kube import paths
from dra_driver.kube.connection import Connection
from dra_driver.kube.http import RequestLimits
from dra_driver.kube.reading import error_from_response
from dra_driver.kube.rest import RestClient, Timeouts
from dra_driver.sim.loop import kind_of, load
from dra_driver.sim.objects import is_ready
from tests.e2e.cluster import DRIVER, GONE_S, KUBECTL_DRA, REACH_S, ROOT, RealCluster, crd_served, wait
from tests.e2e.host import Host, controllers
from tests.fakes.node_process import DriverProcess, NodeProcess
from tests.harness.servers import object_path

Obj = dict[str, Any]
RAW = "raw"
SEED = int(os.environ.get("E2E_HOSTILE_SEED", "23"))
LIMIT_S = float(os.environ.get("E2E_HOSTILE_LIMIT_S", "20"))
"""For one command. Lists of 70 MB alone take some seconds on two cores."""
MOST_LOG = 64 << 10
NODE, WORK, PODS_OF = "hostile-node", "hostile-work", "hostile"
DRA, CORE = "resource.k8s.io/v1", "v1"
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\x9b]")
COSTLY = (
    'device.driver != "" && [{n}].all(x, [{n}].all(y, [{n}].all(z, x + y + z >= 0))) && "uuid" in '
    f'device.attributes["{DRIVER}"] && device.attributes["{DRIVER}"].uuid != '
).replace("{n}", ",".join(map(str, range(38))))


def raw(value: bytes, obj: Obj) -> Obj:
    """The object with ``"@"`` in its JSON replaced by bytes that a JSON encoder would not write."""
    return {**obj, RAW: value}


def claim(name: str, *requests: Obj, kind: str = "ResourceClaim", config: Sequence[object] = (), **more: Any) -> Obj:
    devices: Obj = {"requests": list(requests or (request(),)), **more.pop("devices", {})}
    if config:
        devices["config"] = [{"opaque": {"driver": DRIVER, "parameters": each}} for each in config]
    metadata = {"name": name, "namespace": PODS_OF, **more.pop("metadata", {})}
    spec = {"devices": devices}
    return {
        "apiVersion": DRA,
        "kind": kind,
        "metadata": metadata,
        "spec": {"spec": spec} if kind == "ResourceClaimTemplate" else spec,
        **more,
    }


def request(name: str = "r", **more: Any) -> Obj:
    return {"name": name, "exactly": {"deviceClassName": DRIVER, **more}}


def selectors(*texts: str) -> list[Obj]:
    return [{"cel": {"expression": text}} for text in texts]


def pod(name: str, *claims: str, **more: Any) -> Obj:
    named = [{"name": f"c{number}", "resourceClaimName": each} for number, each in enumerate(claims)]
    spec = {
        "containers": [{"name": "main", "image": "registry.k8s.io/pause:3.10"}],
        "schedulerName": "no-scheduler",
        "resourceClaims": named,
        **more.pop("spec", {}),
    }
    metadata = {"name": name, "namespace": PODS_OF, **more.pop("metadata", {})}
    return {"apiVersion": CORE, "kind": "Pod", "metadata": metadata, "spec": spec}


def other_slice(name: str, *devices: Obj, **spec: Any) -> Obj:
    pool = {"name": name, "generation": 1, "resourceSliceCount": 1}
    body = {"driver": "other.example.com", "pool": pool, "allNodes": True, "devices": list(devices), **spec}
    return {"apiVersion": DRA, "kind": "ResourceSlice", "metadata": {"name": name}, "spec": body}


def labels(size: int, rng: random.Random) -> dict[str, str]:
    """Labels have no limit on their number."""
    return {f"l{number:05}.{'a' * 56}": f"{rng.getrandbits(200):050x}" for number in range(size // 120)}


def deep(opening: bytes, closing: bytes, levels: int) -> bytes:
    return b'{"a":' + opening * levels + b"1" + closing * levels + b"}"


ODD = "\u202e\u0000\u001b[2J\u200b\U0001f4a3\r\n\t\u0085 ﷺ" + "e\u0301" * 40
QUANTITIES = ("1e-9", "9223372036854775807Ei", "0", "1n", "999999999999999999999999", "100m", "1E18")
Make = Callable[[random.Random], Sequence[Obj]]


def _parameters(value: bytes) -> Make:
    return lambda _: [
        raw(value, claim("odd", config=["@"])),
        pod("odd-pod", "odd"),
        raw(value, claim("odd-template", kind="ResourceClaimTemplate", config=["@"])),
    ]


def _costly(rng: random.Random) -> list[Obj]:
    texts = [f'{COSTLY}"{rng.getrandbits(40)}-{number}"' for number in range(32)]
    wide = [request(f"r{number}", selectors=selectors(*texts)) for number in range(8)]
    return [claim("costly", *wide), pod("costly-pod", "costly")]


def _quantities(_: random.Random) -> list[Obj]:
    asked = [request(f"r{n}", capacity={"requests": {"memory": each}}) for n, each in enumerate(QUANTITIES)]
    capacity = {
        f"c{number}": {"value": each} for number, each in enumerate(("-1", "-9223372036854775807Ei", *QUANTITIES))
    }
    resources = {"requests": {"cpu": "1n", "memory": "9223372036854775807"}}
    spec = {"containers": [{"name": "main", "image": "x", "resources": resources}]}
    quota = {"hard": {f"{DRIVER}.deviceclass.resource.k8s.io/devices": "9223372036854775807Ei", "cpu": "1n"}}
    return [
        claim("odd", *asked),
        pod("odd-pod", "odd", spec=spec),
        other_slice("odd-slice", {"name": "d", "capacity": capacity}),
        {"kind": "ResourceQuota", "metadata": {"name": "odd", "namespace": PODS_OF}, "spec": quota},
    ]


def _odd_text(rng: random.Random) -> list[Obj]:
    notes = {f"example.com/{number}": ODD + chr(rng.randrange(0x20, 0x2FFF)) for number in range(50)}
    event = {
        "apiVersion": CORE,
        "kind": "Event",
        "metadata": {"name": "odd", "namespace": PODS_OF},
        "involvedObject": {"kind": "ResourceClaim", "namespace": PODS_OF, "name": ODD[:60]},
        "reason": "FailedScheduling",
        "message": ODD * 8,
        "type": "Warning",
    }
    return [
        claim("odd", metadata={"annotations": notes}, config=[{"apiVersion": ODD, "kind": ODD, ODD: [ODD]}]),
        pod("odd-pod", "odd", metadata={"annotations": notes}),
        event,
        other_slice("odd-slice", {"name": "d", "attributes": {"text": {"string": "\u202e\U0001f4a3\u001b[2J"}}}),
    ]


def _many_devices(rng: random.Random) -> list[Obj]:
    def device(number: int) -> Obj:
        attributes = {f"a{each}": {"int": rng.getrandbits(62)} for each in range(20)}
        return {"name": f"d{number}", "attributes": attributes, "capacity": {"memory": {"value": "1"}}}

    taint = {"key": "x", "value": "y", "effect": "NoExecute"}
    tainted = {"name": "t", "taints": [taint] * 16}
    newest = {"name": "pool", "generation": 2**63 - 1, "resourceSliceCount": 9}
    return [
        *(other_slice(f"many-{number}", *(device(each) for each in range(128))) for number in range(8)),
        other_slice("incomplete", tainted, pool=newest),
    ]


def _class(name: str, **spec: Any) -> Obj:
    return {"apiVersion": DRA, "kind": "DeviceClass", "metadata": {"name": name}, "spec": spec}


NOWHERE = {"select": {"nodeNames": ["zz-*"]}}


def _cr(kind: str, name: str, *, labels: Mapping[str, str] | None = None, **parts: Any) -> Obj:
    metadata = {"name": name, "labels": dict(labels or {})}
    return {"apiVersion": "gpu.dra-driver.io/v1alpha1", "kind": kind, "metadata": metadata, **parts}


@dataclass(frozen=True)
class Row:
    """``names``: commands whose answer has to name this text. ``most_s``: seconds for one command."""

    make: Make
    names: Mapping[str, str] = field(default_factory=dict)
    explains: str = ""
    most_s: float = LIMIT_S


SHOWN = {"claims": f"{PODS_OF} odd", "explain": f"{PODS_OF}/odd-pod"}
ROWS: dict[str, Row] = {
    "nothing": Row(lambda _: []),
    "claims-deep": Row(_parameters(deep(b"[", b"]", 4990)), SHOWN, "odd-pod"),
    "claims-deep-objects": Row(_parameters(deep(b'{"":', b"}", 1990)), SHOWN, "odd-pod"),
    "claims-deep-beside-strings": Row(_parameters(deep(b'["]",', b"]", 1690)), SHOWN, "odd-pod"),
    "claims-not-utf-8": Row(_parameters(b'{"apiVersion":"\xff\xfe","\xed\xa0\x80":"\x80"}'), SHOWN, "odd-pod"),
    "claims-half-surrogates": Row(_parameters(rb'{"kind":"\ud800","\udfff":["\udbff"]}'), SHOWN, "odd-pod"),
    "claims-duplicate-keys": Row(_parameters(b'{"kind":"a","kind":["b"],"apiVersion":null}'), SHOWN, "odd-pod"),
    "claims-numbers": Row(_parameters(b'{"a":[1e308,-0,9223372036854775808,1e-400,0.1e1]}'), SHOWN, "odd-pod"),
    "claims-odd-text": Row(_odd_text, SHOWN, "odd-pod"),
    "claims-quantities": Row(_quantities, SHOWN, "odd-pod"),
    "claims-32-requests": Row(
        lambda _: [
            claim("odd", *(request(f"r{number}", count=1) for number in range(32))),
            claim("all", request(allocationMode="All"), request("more", count=9223372036854775807)),
            pod("odd-pod", "odd", "all"),
        ],
        SHOWN,
        "odd-pod",
    ),
    "claims-costly-selectors": Row(_costly, {"explain": "claim hostile/costly"}, "costly-pod"),
    "claims-costly-many": Row(
        lambda rng: [
            each
            for number in range(20)
            for each in (
                claim(f"costly-{number}", request(selectors=selectors(f'{COSTLY}"{rng.getrandbits(40)}"'))),
                pod(f"costly-pod-{number}", f"costly-{number}"),
            )
        ],
        {"explain": "hostile/costly-pod-0"},
        "costly-pod-0",
    ),
    "claims-long-names": Row(
        lambda _: [claim("n" * 253), pod("p" * 253, "n" * 253), other_slice("s" * 253, {"name": "d" * 63})],
        {"claims": "n" * 20},
        "p" * 253,
    ),
    "claims-1000": Row(lambda _: [claim(f"many-{number:04}") for number in range(1000)], {"claims": "many-0999"}),
    "claims-large": Row(
        lambda rng: [claim(f"large-{number}", metadata={"labels": labels(1_150_000, rng)}) for number in range(62)],
        {"claims": "large-61"},
        most_s=60.0,
    ),
    "slices-many-devices": Row(_many_devices, {"devices": "d127"}),
    "classes": Row(
        lambda rng: [
            raw(
                deep(b"[", b"]", 4990),
                _class("odd-class", config=[{"opaque": {"driver": DRIVER, "parameters": "@"}}]),
            ),
            _class("odd-costly", selectors=selectors(*(f'{COSTLY}"{rng.getrandbits(40)}"' for _ in range(32)))),
            _class("odd-extended", extendedResourceName=f"example.com/{'x' * 60}"),
            claim("odd", {"name": "r", "exactly": {"deviceClassName": "odd-costly"}}),
            pod("odd-pod", "odd"),
        ],
        {"explain": "odd-costly"},
        "odd-pod",
    ),
    "nodes": Row(
        lambda _: [
            {
                "apiVersion": CORE,
                "kind": "Node",
                "metadata": {
                    "name": "odd-node",
                    "labels": {"nvidia.com/mig.config": "x" * 63, "nvidia.com/gpu.count": "9" * 60},
                    "annotations": {"gpu.dra-driver.io/drain": ODD, "gpu.dra-driver.io/detach": ODD},
                },
                "spec": {"taints": [{"key": f"k{n}", "effect": "NoSchedule"} for n in range(200)]},
                "status": {"capacity": {"nvidia.com/gpu": "9223372036854775807", "cpu": "1n"}},
            }
        ],
    ),
    "policies": Row(
        lambda rng: [
            *(_cr("GpuPolicy", f"odd-{number}", spec=NOWHERE) for number in range(50)),
            _cr("GpuPolicy", "odd-large", spec=NOWHERE, labels=labels(900_000, rng)),
        ],
    ),
    "gpu-nodes": Row(
        lambda rng: [
            _cr("GpuNode", "odd-node", status=_invented()),
            _cr("GpuNode", "odd-large", labels=labels(900_000, rng)),
        ]
    ),
}


def _invented() -> Obj:
    idle = {"namespace": PODS_OF, "claimUid": "x", "since": "2026-11-22T12:00:00Z", "action": "Reclaim"}
    usage = {
        "checkedAt": "2026-11-22T12:00:00Z",
        "idle": [{**idle, "claim": f"x-{number}", "afterMinutes": 5} for number in range(32)],
    }
    gpu = {"offeredAs": [], "usedAs": "Shared", "health": "Healthy"}
    gpus = [{**gpu, "name": f"gpu-{number}", "uuid": f"GPU-{number}"} for number in range(64)]  # the CRD's limit
    return {**node_status(GpuNodeStatus(driver_name=DRIVER), "2026-11-22T12:00:00Z"), "gpus": gpus, "usage": usage}


class Api:
    """Creates objects as bytes, and deletes them again."""

    def __init__(self, kubeconfig: str) -> None:
        self._connection = Connection.load(kubeconfig)
        self.rest = RestClient(self._connection, timeouts=Timeouts(read_s=60.0, total_s=60.0))
        self._made: list[str] = []

    def create(self, obj: Obj) -> None:
        value = obj.get(RAW)
        body = json.dumps({name: each for name, each in obj.items() if name != RAW}).encode()
        name, namespace = obj["metadata"]["name"], obj["metadata"].get("namespace", "")
        is_quota = obj["kind"] == "ResourceQuota"  # which the embedded cluster does not have
        path = f"/api/v1/namespaces/{namespace}/resourcequotas" if is_quota else object_path(kind_of(obj), namespace)
        headers = {"Content-Type": "application/json", **self._connection.auth_headers()}
        limits = RequestLimits(connect_s=5.0, read_s=60.0)
        target = f"{path}?fieldValidation=Ignore"
        answer = self._connection.send("POST", target, headers, body.replace(b'"@"', value or b'"@"'), limits)()
        text = b"".join(iter(lambda: answer.read_some(1 << 16), b""))
        answer.close()
        if answer.status >= 300:
            raise error_from_response(f"POST {path}/{name}", answer.status, text, {})
        self._made.append(f"{path}/{name}")
        if obj["kind"] == "GpuNode" and "status" in obj:
            made = self.rest.get(f"{path}/{name}")
            self.rest.update(f"{path}/{name}/status", {**made, "status": obj["status"]})

    @contextmanager
    def removed(self) -> Iterator[None]:
        """Deletes at its end what was created in it."""
        before = len(self._made)
        try:
            yield
        finally:
            while len(self._made) > before:
                with suppress(NotFoundError):
                    self.rest.delete(self._made.pop())


class WebUi:
    """A browser with the web UI's cookie."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        jar = urllib.request.HTTPCookieProcessor(http.cookiejar.CookieJar())
        self._open = urllib.request.build_opener(jar).open
        with self._open(address, timeout=LIMIT_S) as answer:
            link = re.search(r'href="([^"]+)"', answer.read().decode())
        assert link is not None
        self._base = urljoin(address, link[1]).rstrip("/")

    def page(self, path: str, limit_s: float) -> str:
        try:
            with self._open(f"{self._base}/{path}", timeout=limit_s) as answer:
                found: bytes = answer.read()
        except urllib.error.HTTPError as error:
            return f"{error.code}: {error.read()[:2000]!r}"
        return found.decode()


@dataclass(frozen=True)
class Stage:
    api: Api
    kubeconfig: str
    node: str
    ui: WebUi
    processes: Mapping[str, DriverProcess]
    ready: str
    folder: Path

    def ask(self, command: Sequence[str], limit_s: float) -> tuple[float, int, str]:
        """Seconds, exit status and the answer; -1 if it did not end in time."""
        words = [*KUBECTL_DRA, *command, "--kubeconfig", self.kubeconfig]
        begun = time.monotonic()
        try:
            done = subprocess.run(words, capture_output=True, timeout=limit_s, check=False)
        except subprocess.TimeoutExpired:
            return time.monotonic() - begun, -1, ""
        return time.monotonic() - begun, done.returncode, (done.stdout + done.stderr).decode()


@pytest.fixture(scope="module")
def stage(
    cluster: RealCluster,
    kubeconfig: str,
    node: str | None,
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Stage]:
    folder = tmp_path_factory.mktemp("hostile")
    api = Api(kubeconfig)
    with ExitStack() as stack:
        for plural in ("gpupolicies", "gpunodes"):
            stack.enter_context(crd_served(api.rest, plural))
        stack.enter_context(namespace(api.rest, finalize=node is None))
        stack.enter_context(api.removed())
        processes: dict[str, DriverProcess] = {}
        if node is None:
            processes["node process"] = stack.enter_context(node_process(api, folder, kubeconfig))
            work_by_hand(api)
        else:
            host: Host | None = request.getfixturevalue("host")
            if host is not None:
                processes["node process"] = host.process
            work_on(cluster, api)
        flags = {"kubeconfig": kubeconfig, "namespace": PODS_OF, "lease_duration": "3", "http_addr": "127.0.0.1:0"}
        flags |= {"evict_extended_resource_pods": "true", "evict_over_grant": "true", "reclaim_idle": "true"}
        (folder / "controller").mkdir()
        processes["controller"] = controller = stack.enter_context(controllers(folder / "controller", flags))("c")
        controller.wait_for(lambda: "port=" in controller.text)
        port = re.search(r"port=(\d+)", controller.text)
        assert port is not None
        words = [*KUBECTL_DRA, "ui", "--kubeconfig", kubeconfig]
        ui = stack.enter_context(subprocess.Popen(words, stdout=subprocess.PIPE, text=True))
        stack.callback(ui.terminate)
        ready = f"http://127.0.0.1:{port[1]}/readyz"
        yield Stage(api, kubeconfig, node or NODE, WebUi(ui), processes, ready, folder)


@contextmanager
def namespace(rest: RestClient, *, finalize: bool) -> Iterator[None]:
    path = f"/api/v1/namespaces/{PODS_OF}"
    rest.create("/api/v1/namespaces", {"metadata": {"name": PODS_OF}})
    with suppress(AlreadyExistsError):  # an API server without controllers does not make it
        rest.create(f"{path}/serviceaccounts", {"metadata": {"name": "default"}})
    try:
        yield
    finally:
        rest.delete(path)
        if finalize:
            for kind in ("serviceaccounts", "events", "configmaps"):
                for item in rest.list(f"{path}/{kind}")["items"]:
                    rest.delete(f"{path}/{kind}/{item['metadata']['name']}")
            lease = f"/apis/coordination.k8s.io/v1/namespaces/{PODS_OF}/leases"
            for item in rest.list(lease)["items"]:
                rest.delete(f"{lease}/{item['metadata']['name']}")
            rest.update(f"{path}/finalize", {**rest.get(path), "spec": {"finalizers": []}})
        wait(lambda: unread_namespace(rest, path), GONE_S)


def unread_namespace(rest: RestClient, path: str) -> str:
    try:
        rest.get(path)
    except NotFoundError:
        return ""
    return f"{path} is there"


@contextmanager
def node_process(api: Api, folder: Path, kubeconfig: str) -> Iterator[NodeProcess]:
    """A node process without a kubelet, for a Node that is only an object."""
    api.create(
        {"apiVersion": CORE, "kind": "Node", "metadata": {"name": NODE}, "status": {"capacity": {"pods": "110"}}}
    )
    api.rest.merge_patch(paths.node(NODE), {"spec": {"taints": None}})  # not-ready, without a kubelet
    process = NodeProcess(folder, environ={"KUBECONFIG": kubeconfig}, node_name=NODE, simulate="2xh100-sxm5-80gb")
    process.start()
    try:
        process.wait_for(lambda: published(api.rest), 30.0)
        yield process
    finally:
        process.end()
        for item in published(api.rest):
            api.rest.delete(paths.resource_slices(item["metadata"]["name"]))
        with suppress(NotFoundError):
            api.rest.delete(paths.gpu_nodes(NODE))


def published(rest: RestClient) -> list[Obj]:
    slices: list[Obj] = rest.list(paths.resource_slices(), {"fieldSelector": f"spec.nodeName={NODE}"})["items"]
    return slices


def work_by_hand(api: Api) -> None:
    """A running pod with a claim, as the scheduler and a kubelet would write them."""
    api.create(claim(WORK))
    api.create(pod(WORK, WORK, spec={"nodeName": NODE, "terminationGracePeriodSeconds": 0}))
    claim_path, pod_path = paths.resource_claim(PODS_OF, WORK), paths.pod(PODS_OF, WORK)
    held, running = api.rest.get(claim_path), api.rest.get(pod_path)
    result = {"request": "r", "driver": DRIVER, "pool": f"{NODE}/{DRIVER}", "device": "gpu-0"}
    user = {"resource": "pods", "name": WORK, "uid": running["metadata"]["uid"]}
    allocation = {"devices": {"results": [result]}}
    api.rest.update(f"{claim_path}/status", {**held, "status": {"allocation": allocation, "reservedFor": [user]}})
    api.rest.update(f"{pod_path}/status", {**running, "status": {"phase": "Running"}})


def work_on(cluster: RealCluster, api: Api) -> None:
    *others, work = load(ROOT / "examples" / "one-gpu.yaml")
    work["metadata"]["name"] = WORK
    work["spec"]["terminationGracePeriodSeconds"] = 1
    for obj in (*others, work):
        api.create({**obj, "metadata": {**obj["metadata"], "namespace": PODS_OF}})
    wait(lambda: None if is_ready(cluster.pod(WORK, PODS_OF)) else "the working pod is not ready", REACH_S)


def commands(stage: Stage, row: Row) -> dict[str, list[str]]:
    (stage.folder / "out").mkdir(exist_ok=True)
    for path in (stage.folder / "out").iterdir():
        path.unlink()
    return {
        **{name: [name] for name in ("devices", "capacity", "topology", "doctor")},
        **{name: [name, "-A"] for name in ("claims", "usage", "idle", "quota")},
        "classes": ["classes", "list"],
        "explain": ["explain", f"pod/{row.explains or WORK}", "-n", PODS_OF],
        "lint": ["lint", "--cluster"],
        "migrate": ["migrate", "--from-cluster"],
        "snapshot": ["snapshot", str(stage.folder / "out" / "state.json")],
        "support-bundle": ["support-bundle", str(stage.folder / "out" / "b.tar.gz")],
        "drain": ["drain", stage.node, "--no-detach", "--timeout", "1s"],
        "undrain": ["undrain", stage.node],
    }


@pytest.fixture(scope="module")
def table() -> Iterator[list[str]]:
    rows: list[str] = []
    yield rows
    print("\n" + "\n".join(rows))  # noqa: T201 - for `pytest -s`


@pytest.mark.parametrize("name", ROWS)
def test_hostile_objects_stop_nothing(stage: Stage, name: str, table: list[str]) -> None:
    row, rng = ROWS[name], random.Random(f"{SEED} {name}")  # noqa: S311 - repeatable, keeps no secret
    logs = {what: len(process.text) for what, process in stage.processes.items()}
    problems: list[str] = []
    with stage.api.removed():
        try:
            for obj in row.make(rng):
                stage.api.create(obj)
        except (ForbiddenError, InvalidObjectError) as error:
            if "ValidatingAdmissionPolicy" not in str(error):  # of this driver's chart
                raise
            table.append(f"{name:24} refused: {str(error)[:200]}")
            return
        for command, words in commands(stage, row).items():
            seconds, status, text = stage.ask(words, row.most_s)
            table.append(
                f"{name:24} {command:15} {seconds:6.1f} s  {status:2}  {shown(text, row.names.get(command, ''))}"
            )
            good = (0, 1, 2) if "no pod with the label app.kubernetes.io/component=exporter" in text else (0, 1)
            problems += [f"{command}: {each}" for each in wrong(status in good, text, row.names.get(command, ""))]
        problems += pages(stage, row, name, table)
    for what, process in stage.processes.items():
        grown = len(process.text) - logs[what]
        table.append(f"{name:24} {what:15} {'lives' if process.lives else 'ended':>8}  its log grew by {grown} bytes")
        if not process.lives or grown > MOST_LOG or "Traceback" in process.text[logs[what] :]:
            problems.append(f"{what}: lives {process.lives}, log: {process.text[logs[what] :][-3000:]}")
    with urllib.request.urlopen(stage.ready, timeout=LIMIT_S) as answer:  # noqa: S310 - on loopback
        problems += [f"controller is not ready: {answer.read()!r}"] if answer.status != 200 else []
    assert problems == []


def pages(stage: Stage, row: Row, name: str, table: list[str]) -> list[str]:
    """The web UI reads the cluster every few seconds; so it is asked until it names the object."""
    problems: list[str] = []
    wanted = {"claims": "odd" if row.names is SHOWN else "", "pending": row.explains[:60]}
    for path in (
        "",
        "claims",
        "pending",
        "capacity",
        "events",
        *([f"pending/{PODS_OF}/{row.explains}"] if row.explains else []),
    ):
        begun, text = time.monotonic(), ""
        while time.monotonic() - begun < row.most_s:
            text = stage.ui.page(path, row.most_s)
            if wanted.get(path, "") in text:
                break
            time.sleep(0.2)
        seconds = time.monotonic() - begun
        table.append(
            f"{name:24} page {path[:10]:10} {seconds:6.1f} s  {shown(re.sub('<[^>]*>', ' ', text)[-300:], '')}"
        )
        if wanted.get(path, "") not in text or "500: " in text[:5]:
            problems.append(f"page {path}: {seconds:.1f} s, wanted {wanted.get(path)}: {text[:500]}")
    return problems


def wrong(ended_well: bool, text: str, wanted: str) -> list[str]:
    found = [] if ended_well else [f"bad exit status, or no answer in time: {text[-1500:]}"]
    if "Traceback" in text:
        found.append(text[-1500:])
    if CONTROL.search(text):
        found.append("control characters")
    if wanted not in " ".join(text.split()):
        found.append(f"does not name {wanted}: {text[:1500]}")
    return found


def shown(text: str, wanted: str) -> str:
    lines = [" ".join(line.split()) for line in text.splitlines() if line.strip()]
    line = next((line for line in lines if wanted and wanted in line), lines[-1] if lines else "")
    return line[:110]
