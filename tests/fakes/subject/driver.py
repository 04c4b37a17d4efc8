"""The process of the driver under test: two gRPC servers and the thread that publishes its slices."""

import shutil
import threading
import time
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import grpc

from dra_driver.conformance.checks.prepare import OTHER_DRIVER
from dra_driver.core._pb.dra_v1 import api_pb2 as v1
from dra_driver.core._pb.dra_v1beta1 import api_pb2 as v1beta1
from dra_driver.core._pb.health_v1 import api_pb2 as health_v1
from dra_driver.core._pb.health_v1alpha1 import api_pb2 as health_v1alpha1
from dra_driver.core._pb.pluginregistration import api_pb2 as registration
from dra_driver.core.errors import KubernetesApiError
from dra_driver.kube import paths
from dra_driver.kube.rest import RestClient
from tests.fakes.subject.claims import HUGE, Claims, Crash, Refused, published

EVERY_S = 0.05
WORK_S = 0.15


class Calls:
    """Calls in flight. Thread-safe."""

    def __init__(self, faults: Collection[str]) -> None:
        self._faults = faults
        self._lock = threading.Lock()  # guards the sets and the count
        self._busy: set[str] = set()
        self._stuck: set[str] = set()
        self.streams = 0

    @contextmanager
    def prepare(self, uid: str, context: grpc.ServicerContext) -> Iterator[None]:
        with self._lock:
            same, other = uid in self._busy, bool(self._busy - {uid})
            if (same and "busy-with-claim" in self._faults) or (other and "busy-with-another" in self._faults):
                raise Refused("busy")
            if self.streams > 1 and "health-blocks" in self._faults:
                raise Refused("health streams are open")
            self._busy.add(uid)
        try:
            if {"busy-with-claim", "busy-with-another"} & set(self._faults):
                time.sleep(WORK_S)
            if "stuck-when-given-up" in self._faults:
                self._stick(uid, context)
            yield
        finally:
            with self._lock:
                self._busy.discard(uid)

    def _stick(self, uid: str, context: grpc.ServicerContext) -> None:
        """Work for a while; a claim whose caller gives up meanwhile is lost for all later calls."""
        end = time.monotonic() + 2 * WORK_S
        while context.is_active() and time.monotonic() < end:
            time.sleep(0.005)
        with self._lock:
            if not context.is_active():
                self._stuck.add(uid)
            if uid in self._stuck:
                raise Refused("the claim is being prepared")

    @contextmanager
    def unprepare(self, uid: str) -> Iterator[None]:
        key = f"unprepare {uid}"
        with self._lock:
            if key in self._busy and "busy-with-unprepare" in self._faults:
                raise Refused("busy")
            self._busy.add(key)
        try:
            if "busy-with-unprepare" in self._faults:
                time.sleep(WORK_S)
            yield
        finally:
            with self._lock:
                self._busy.discard(key)


def health_stream(
    messages: Any, version: str, claims: Claims, calls: Calls, _request: Any, context: grpc.ServicerContext
) -> Iterator[Any]:
    calls.streams += 1
    first = calls.streams
    try:
        if claims.has("health-fails"):
            context.abort(grpc.StatusCode.INTERNAL, "no health today")
        while context.is_active() and not claims.stopped.wait(0 if claims.has("health-flood") else EVERY_S):
            if (reported := claims.prepared_devices()) and not claims.has("health-silent"):
                yield _message(messages, version, claims, reported, first)
                if claims.has("health-once"):
                    claims.stopped.wait(5.0)
    finally:
        calls.streams -= not claims.has("health-first-stream-only")


def _message(messages: Any, version: str, claims: Claims, reported: list[dict[str, Any]], number: int) -> Any:
    answer = messages.NodeWatchResourcesResponse()
    ill = claims.has("health-versions-differ") and version == "v1alpha1"
    for device in reported:
        name = device["device"]
        if claims.has("health-of-unknown-device"):
            name = "never-published"
        if claims.has("health-flood"):
            name = f"flood-{time.monotonic_ns()}"
        if claims.has("health-first-stream-only") and number % 2 == 0:
            name = "unit-33"
        answer.devices.append(
            messages.DeviceHealth(
                device=messages.DeviceIdentifier(pool_name=device["pool"], device_name=name),
                health=2 if ill else _health(claims, device["device"]),
                health_check_timeout_seconds=1 if claims.has("health-once") or claims.has("health-flood") else 30,
                message="x" * 5000 if claims.has("long-health-message") else "",
            )
        )
    return answer


def _health(claims: Claims, device: str) -> int:
    if claims.has("health-always-bad"):
        return 2
    if claims.has("health-always-unknown"):
        return 0
    is_broken = bool(claims.broken) if claims.has("health-blames-all") else device in claims.broken
    return 2 if is_broken and not claims.has("health-never-updates") else 1


VERSIONS = ["v1.DRAPlugin", "v1beta1.DRAPlugin", "v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth"]
SYNC_S = 0.05


class SubjectDriver:
    """One driver in one folder. ``faults`` are names of `faults.FAULTS`. `restart` is a kill and a new start."""

    def __init__(self, folder: Path, rest: RestClient, *, driver: str, node: str, faults: Collection[str] = ()) -> None:
        self.folder, self.driver, self.node = folder, driver, node
        self.faults = frozenset(faults)
        self._rest = rest
        for name in ("reg", "cdi", "plugin"):
            (folder / name).mkdir(exist_ok=True)
        self.registrar_dir, self.cdi_dir = folder / "reg", folder / "cdi"
        self._servers: list[grpc.Server] = []
        self._registrations = self._infos = self._starts = 0
        self._refused = self._published = self._updated = False

    def start(self) -> "SubjectDriver":
        self._starts += 1
        self.calls = Calls(self.faults)
        self.claims = Claims(self.folder, self._rest, self.driver, self.node, self.faults)
        self._stop = threading.Event()
        self._publisher = threading.Thread(target=self._keep_published, name="subject-slices", daemon=True)
        self._publisher.start()
        dra = {"NodePrepareResources": self._prepare, "NodeUnprepareResources": self._unprepare}
        handlers = [
            _handlers(module, "DRAPlugin", {name: partial(method, module) for name, method in dra.items()})
            for module in ([v1beta1] if self.has("lies-about-v1") else [v1, v1beta1])
        ]
        for version, module in {"v1": health_v1, "v1alpha1": health_v1alpha1}.items():
            if not self.has("no-health-service") and not (version == "v1" and self.has("lies-about-health")):
                stream = partial(health_stream, module, version, self.claims, self.calls)
                handlers.append(_handlers(module, "DRAResourceHealth", {"NodeWatchResources": stream}))
        again = self._starts > 1
        if not self.has("endpoint-not-served") and not (again and self.has("late-endpoint")):
            self._serve(self.folder / "plugin" / "dra.sock", handlers)
        if self.has("removes-other-sockets"):
            for path in self.registrar_dir.iterdir():
                path.unlink()
        if again and self.has("no-second-start"):
            return self
        register = {"GetInfo": self._get_info, "NotifyRegistrationStatus": self._notify}
        self._serve(self.registrar_dir / f"{self.driver}-reg.sock", [_handlers(registration, "Registration", register)])
        return self

    def restart(self) -> None:
        self.kill()
        self.start()

    def inject(self, _pool: str, device: str) -> None:
        self.claims.broken.add(device)

    def recover(self, _pool: str, device: str) -> None:
        if not self.has("health-never-recovers"):
            self.claims.broken.discard(device)

    def kill(self) -> None:
        self._stop.set()
        self.claims.stopped.set()
        for server in self._servers:
            server.stop(0).wait(5.0)
        self._servers.clear()
        self._publisher.join(5.0)

    def end(self) -> None:
        self.kill()
        for item in self._own_slices():
            with suppress(KubernetesApiError):
                self._rest.delete(paths.resource_slices(item["metadata"]["name"]))
        shutil.rmtree(self.folder, ignore_errors=True)

    def has(self, fault: str) -> bool:
        return fault in self.faults

    def _serve(self, path: Path, handlers: list[grpc.GenericRpcHandler]) -> None:
        path.unlink(missing_ok=True)
        options = [("grpc.max_send_message_length", -1)]
        server = grpc.server(ThreadPoolExecutor(24, thread_name_prefix="subject"), options=options)
        server.add_generic_rpc_handlers(tuple(handlers))
        server.add_insecure_port(f"unix:{path}")
        server.start()
        self._servers.append(server)

    # Registration.

    def _get_info(self, _request: Any, context: grpc.ServicerContext) -> Any:
        self._infos += 1
        if self.has("get-info-hangs") or (self._refused and self.has("dies-when-refused")):
            self.claims.hang()
        versions = list(VERSIONS)
        if self.has("no-known-version"):
            versions = ["v9.DRAPlugin"]
        if self.has("oldest-version-first"):
            versions = [versions[1], versions[0]]
        if self.has("no-health-service"):
            versions = versions[:2]
        if self.has("info-changes"):
            versions.append(f"v{self._infos}.Other")
        endpoint = str(self.folder / "plugin" / "dra.sock")
        if self.has("relative-endpoint"):
            endpoint = "plugin/dra.sock"
        if self.has("endpoint-is-registration"):
            endpoint = str(self.registrar_dir / f"{self.driver}-reg.sock")
        return registration.PluginInfo(
            type="DevicePlugin" if self.has("wrong-type") else "DRAPlugin",
            name=f"not-{self.driver}" if self.has("wrong-name") else self.driver,
            endpoint=endpoint,
            supported_versions=versions,
        )

    def _notify(self, request: Any, _context: grpc.ServicerContext) -> Any:
        self._registrations += request.plugin_registered
        self._refused = self._refused or not request.plugin_registered
        return registration.RegistrationStatusResponse()

    # Claims.

    def _prepare(self, messages: Any, request: Any, context: grpc.ServicerContext) -> Any:
        self._check_call(request, context, "prepare")
        self.claims.of_this_call = frozenset(claim.uid for claim in request.claims)
        answer = messages.NodePrepareResourcesResponse()
        for claim in request.claims:
            entry = answer.claims[claim.uid]
            try:
                with self.calls.prepare(claim.uid, context):
                    devices = self.claims.prepare(claim.namespace, claim.name, claim.uid)
            except Refused as error:
                if self.has("fails-whole-call"):
                    context.abort(grpc.StatusCode.UNKNOWN, str(error))
                entry.error = "" if self.has("empty-success") else str(error)
                continue
            except Crash:
                threading.Thread(target=self.kill, daemon=True).start()
                self.claims.hang()
                break
            entry.devices.extend(_device(messages, device) for device in devices)
            if self.has("huge-answer"):
                entry.devices[0].cdi_device_ids.append(HUGE)
            if self.has("prepare-skips"):
                del answer.claims[claim.uid]
            if self.has("prepare-adds"):
                answer.claims["some-other-claim"].error = ""
        return answer

    def _unprepare(self, messages: Any, request: Any, context: grpc.ServicerContext) -> Any:
        self._check_call(request, context, "unprepare")
        answer = messages.NodeUnprepareResourcesResponse()
        for claim in request.claims:
            known = self.claims.known(claim.uid)
            try:
                with self.calls.unprepare(claim.uid):
                    self.claims.unprepare(claim.namespace, claim.name, claim.uid)
                answer.claims[claim.uid].error = ""
            except Refused as error:
                answer.claims[claim.uid].error = str(error)
            if self.has("unprepare-adds"):
                answer.claims["some-other-claim"].error = ""
            if self.has("unprepare-skips") or (self.has("unprepare-skips-unknown") and not known):
                del answer.claims[claim.uid]
        return answer

    def _check_call(self, request: Any, context: grpc.ServicerContext, operation: str) -> None:
        if self.has("registers-once") and self._registrations > 1:
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, "registered already")
        if self.has("few-claims") and len(request.claims) > 16:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "too many claims")
        prepares = operation == "prepare"
        if prepares and self.has("prepare-hangs") and request.claims:
            self.claims.hang()
        if self.has("fails-without-claims" if prepares else "unprepare-fails-without-claims") and not request.claims:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "no claims")
        if prepares and self.has("one-claim-per-call") and len(request.claims) > 1:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "more than one claim")

    # Slices.

    def _keep_published(self) -> None:
        while not self._stop.is_set():
            with suppress(KubernetesApiError):
                self._sync()
            self._stop.wait(SYNC_S)

    def _sync(self) -> None:
        if self.has("publishes-nothing"):
            return
        node_uid = self._rest.get(paths.node(self.node))["metadata"]["uid"]
        existing = {item["metadata"]["name"]: item for item in self._own_slices()}
        if self.has("publishes-once") and self._published:
            return
        if self.has("trusts-its-write") and self._updated and not existing:
            return
        if self.has("repairs-all-only") and existing and self._published:
            return
        if self.has("deletes-other-slices"):
            self._delete_others()
        for item in self._wanted(node_uid):
            self._write(item, existing.get(item["metadata"]["name"]))
        self._published = True

    def _wanted(self, node_uid: str) -> list[dict[str, Any]]:
        faults = set(self.faults)
        if self._starts > 1 and self.has("fewer-devices-after-restart"):
            faults.add("restarted")
        wanted = published(self.driver, self.node, node_uid, faults, generation=2)
        if self.has("old-generation-stays"):
            old = published(self.driver, self.node, node_uid, self.faults, generation=1)[0]
            # First, so that the newest generation is never complete without it.
            wanted.insert(0, {**old, "metadata": {**old["metadata"], "name": f"old-{self.driver}"}})
        return wanted

    def _write(self, item: dict[str, Any], found: dict[str, Any] | None) -> None:
        if found is None:
            self._rest.create(paths.resource_slices(), item)
            return
        wrong = _names(found) != _names(item) and not self.has("ignores-changes")
        if wrong or self.has("writes-without-need"):
            labels = {"written": str(int(found["metadata"].get("labels", {}).get("written", "0")) + 1)}
            changed = {**item, "metadata": {**found["metadata"], "labels": labels}}
            self._rest.update(paths.resource_slices(item["metadata"]["name"]), changed)
            self._updated = True

    def _delete_others(self) -> None:
        """Slices that the suite makes for another driver, and none of the drivers of other tests."""
        for item in self._rest.list(paths.resource_slices())["items"]:
            if item["spec"]["driver"] == OTHER_DRIVER:
                self._rest.delete(paths.resource_slices(item["metadata"]["name"]))

    def _own_slices(self) -> list[dict[str, Any]]:
        found = self._rest.list(paths.resource_slices(), {"fieldSelector": f"spec.driver={self.driver}"})
        return list(found["items"])


def _names(item: dict[str, Any]) -> list[str]:
    return [device["name"] for device in item["spec"].get("devices") or ()]


def _handlers(messages: Any, service: str, methods: dict[str, Any]) -> grpc.GenericRpcHandler:
    descriptor = messages.DESCRIPTOR.services_by_name[service]
    made: dict[str, Any] = {}
    for name, method in methods.items():
        found = descriptor.methods_by_name[name]
        make = grpc.unary_stream_rpc_method_handler if found.server_streaming else grpc.unary_unary_rpc_method_handler
        request = getattr(messages, found.input_type.name)
        made[name] = make(method, request.FromString, lambda answer: answer.SerializeToString())
    return grpc.method_handlers_generic_handler(descriptor.full_name, made)


def _device(messages: Any, device: dict[str, Any]) -> Any:
    names = {"pool_name": device["pool"], "device_name": device["device"]}
    message = messages.Device(request_names=device["requests"], cdi_device_ids=device["cdi"], **names)
    if device["share"] and hasattr(message, "share_id"):
        message.share_id = device["share"]
    return message
