"""The kubelet's side of DRA over real unix sockets: register plugins, prepare and unprepare claims. Follows
kubernetes/kubernetes pkg/kubelet/pluginmanager and pkg/kubelet/cm/dra."""

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from time import monotonic
from typing import Any, Final

from msgspec.structs import asdict

from dra_driver.conformance import plugin as registry
from dra_driver.conformance.plugin import DRA_SERVICES, Plugin, PluginInfo, PrepareAnswer
from dra_driver.conformance.values import TimeLimits
from dra_driver.core.backoff import Backoff
from dra_driver.core.errors import RetryableError
from dra_driver.core.unix_grpc import CallError
from dra_driver.core.worker import Worker
from dra_driver.sim.node.kubelet_state import DeviceResponse, HealthCache, KubeletState, NodeClaim

log = logging.getLogger(__name__)

CALL_TIMEOUT_S: Final = 45.0
HEALTH_RETRY_S: Final = 5.0


class DraPlugin:
    """One registered instance of a driver and the connection to it. Thread-safe."""

    def __init__(self, info: PluginInfo, service: str, reports: HealthCache) -> None:
        self.name, self.endpoint, self.service = info.name, info.endpoint, service
        self._reports = reports
        self._plugin = Plugin(info, service, CALL_TIMEOUT_S, as_kubelet=True)
        self._connected = threading.Event()
        self._plugin.peer.watch(lambda up: self._connected.set() if up else self._connected.clear())
        self.health_messages = 0
        self._health_call: Any = None
        self._health = Worker(f"kubelet-health-{self.name}", self._watch_health, interrupt=self._disconnect)
        self._health.start()

    @property
    def connected(self) -> bool:
        """Return whether the connection is up. It is restored without a new registration."""
        return self._connected.is_set()

    def prepare(self, claims: Sequence[NodeClaim]) -> dict[str, PrepareAnswer]:
        """Call NodePrepareResources; returns the answer per claim UID. Raises RetryableError if the call fails."""
        with _translated("NodePrepareResources"):
            return self._plugin.prepare(claims)

    def unprepare(self, claims: Sequence[NodeClaim]) -> dict[str, str]:
        """Call NodeUnprepareResources; returns an error or "" per UID. Raises RetryableError if the call fails."""
        with _translated("NodeUnprepareResources"):
            return self._plugin.unprepare(claims)

    def close(self) -> None:
        """Close the connection and stop the health thread (5 s). Idempotent."""
        self._health.stop(HEALTH_RETRY_S)

    def _disconnect(self) -> None:
        if self._health_call is not None:
            self._health_call.close()
        self._plugin.close()

    def _watch_health(self) -> float:
        """Keep the v1alpha1 stream open, as kubelets up to 1.36 do: to every plugin, again 5 s after each end."""

        def report(message: Any) -> bool:
            self.health_messages += 1
            self._reports.report(self.name, message.devices)
            return False

        try:
            self._health_call = self._plugin.watch_health("v1alpha1.DRAResourceHealth", None)
            self._health_call.read(report)
        except (CallError, ValueError) as error:  # ValueError: the channel was closed
            log.debug("health stream ended", extra={"driver": self.name, "reason": error})
        self._reports.clear(self.name)
        return HEALTH_RETRY_S


@contextmanager
def _translated(method: str) -> Iterator[None]:
    """A failed call becomes the error that the real kubelet shows in a pod's event."""
    try:
        yield
    except CallError as error:
        raise RetryableError(f"{method} failed: rpc error: code = {error.code} desc = {error}") from error


_LIMITS: Final = TimeLimits()
FIRST_BACKOFF_S: Final = 0.5
LONGEST_BACKOFF_S: Final = 122.0


class _Socket:
    def __init__(self, identity: tuple[int, int]) -> None:
        self.identity = identity
        self.plugin: DraPlugin | None = None
        self.backoff = Backoff(first_s=FIRST_BACKOFF_S, longest_s=LONGEST_BACKOFF_S)
        self.not_before = 0.0


class DraManager:
    """Registers plugins and calls them. Start it once, stop it once; a new instance over the same directories is a
    restart.

    ``on_wipe`` gets the name of a driver without a connected instance for ``wiping_delay_s`` (30 s in the real
    kubelet), whose ResourceSlices of this node the caller then deletes. ``on_health`` is called after the health of a
    device has changed.
    """

    def __init__(
        self,
        registry: Path,
        state_file: Path,
        *,
        interval_s: float = 0.1,
        wiping_delay_s: float = 30.0,
        on_wipe: Callable[[str], None] = lambda _driver: None,
        on_health: Callable[[], None] = lambda: None,
    ) -> None:
        self.state = KubeletState(state_file)
        self.health = HealthCache(on_health)
        self._registry = registry
        self._interval_s = interval_s
        self._wiping_delay_s = wiping_delay_s
        self._on_wipe = on_wipe
        self._lock = threading.Lock()  # guards the three dicts below
        self._plugins: dict[str, list[DraPlugin]] = {}
        self._absent_since: dict[str, float] = {}
        self._claim_locks: dict[str, threading.Lock] = {}  # one per claim, for as long as this kubelet lives
        self._sockets: dict[Path, _Socket] = {}
        self._worker = Worker("kubelet-registry", self._poll)

    def start(self) -> None:
        self._worker.start()

    def stop(self) -> None:
        """Close all connections; claims stay prepared, as when a kubelet stops. Idempotent."""
        self._worker.stop(_LIMITS.dial_s)
        with self._lock:
            plugins = [plugin for instances in self._plugins.values() for plugin in instances]
            self._plugins = {}
        for plugin in plugins:
            plugin.close()

    def drivers(self) -> frozenset[str]:
        with self._lock:
            return frozenset(name for name, instances in self._plugins.items() if instances)

    def plugin(self, driver: str) -> DraPlugin:
        """The instance to call: the newest connected one, else the newest. Raises RetryableError without any."""
        with self._lock:
            instances = list(self._plugins.get(driver, ()))
        if not instances:
            raise RetryableError(f"DRA driver {driver} is not registered", reason="DriverNotRegistered")
        return next((plugin for plugin in reversed(instances) if plugin.connected), instances[-1])

    def prepare(self, pod_uid: str, claims: Sequence[NodeClaim]) -> None:
        """Prepare the claims of a pod with their drivers; the devices are in ``state`` afterwards. Prepared claims are
        skipped, and stay prepared if another driver fails. Raises RetryableError with the message for the pod's event.
        """
        for driver in sorted({driver for claim in claims for driver in claim.drivers}):
            self.plugin(driver)
        with self._exclusive(claims):
            for claim in claims:
                self.state.add_user(claim, pod_uid)
            wanted = [claim for claim in claims if not self.state.is_prepared(claim.uid)]
            for driver in sorted({driver for claim in wanted for driver in claim.drivers}):
                of_driver = [claim for claim in wanted if driver in claim.drivers]
                answers = self.plugin(driver).prepare(of_driver)
                errors = {uid: answer.error for uid, answer in answers.items()}
                self._check(of_driver, errors, "NodePrepareResources")
                for claim in of_driver:
                    self.state.set_prepared(claim.uid, driver, _devices(driver, answers[claim.uid]))

    def unprepare(self, pod_uid: str) -> None:
        """Unprepare the claims that only this pod uses. On RetryableError the state keeps them for the next attempt."""
        with self._exclusive(self.state.claims_of(pod_uid)):
            claims = self.state.drop_user(pod_uid)
            for driver in sorted({driver for claim in claims for driver in claim.drivers}):
                of_driver = [claim for claim in claims if driver in claim.drivers]
                self._check(of_driver, self.plugin(driver).unprepare(of_driver), "NodeUnprepareResources")
            self.state.forget(claim.uid for claim in claims)

    @contextmanager
    def _exclusive(self, claims: Sequence[NodeClaim]) -> Iterator[None]:
        with ExitStack() as held:
            for uid in sorted({claim.uid for claim in claims}):
                with self._lock:
                    lock = self._claim_locks.setdefault(uid, threading.Lock())
                held.enter_context(lock)
            yield

    @staticmethod
    def _check(claims: Sequence[NodeClaim], errors: dict[str, str], method: str) -> None:
        asked = {claim.uid: claim for claim in claims}
        for uid, error in errors.items():
            if uid not in asked:
                raise RetryableError(f"{method} returned a claim that was not requested: {uid}")
            if error:
                label = f"{asked[uid].namespace}/{asked[uid].name}"
                raise RetryableError(f"{method} failed for ResourceClaim {label}: {error}", reason="PrepareFailed")
        if len(errors) < len(asked):
            raise RetryableError(f"{method} skipped {len(asked) - len(errors)} ResourceClaims")

    def _poll(self) -> float:
        found = dict(registry.sockets(self._registry))
        for path in [path for path, known in self._sockets.items() if found.get(path) != known.identity]:
            if (plugin := self._sockets.pop(path).plugin) is not None:
                log.info("plugin deregistered", extra={"driver": plugin.name})
                self._remove(plugin)
        for path, identity in found.items():
            known = self._sockets.setdefault(path, _Socket(identity))
            if known.plugin is None and known.not_before <= monotonic():
                self._register(path, known)
        self._wipe_absent()
        return self._interval_s

    def _register(self, path: Path, known: _Socket) -> None:
        try:
            known.plugin = self._handshake(path, known.identity)
        except RetryableError as error:
            backoff_s = known.backoff.next_s()
            known.not_before = monotonic() + backoff_s
            log.warning("plugin not registered", extra={"socket": path, "reason": error, "retry_s": backoff_s})

    def _handshake(self, path: Path, identity: tuple[int, int]) -> DraPlugin:
        registrar = registry.ask(path, identity, _LIMITS)
        if registrar.info is None:
            raise RetryableError(registrar.problem)
        info = registrar.info
        try:
            service = self._validate(info)
        except RetryableError as error:
            self._notify(path, error=str(error))
            raise
        plugin = DraPlugin(info, service, self.health)
        with self._lock:
            self._plugins.setdefault(info.name, []).append(plugin)
            self._absent_since.pop(info.name, None)
        try:
            self._notify(path)
        except RetryableError:
            self._remove(plugin)
            raise
        log.info("plugin registered", extra={"driver": info.name, "endpoint": plugin.endpoint, "service": service})
        return plugin

    def _validate(self, info: PluginInfo) -> str:
        """The service to call: the first entry of the driver's list that a kubelet supports."""
        if info.type != "DRAPlugin":
            raise RetryableError(f"no handler registered for plugin type: {info.type}")
        service: str | None = next((version for version in info.versions if version in DRA_SERVICES), None)
        if service is None:
            listed = list(info.versions)
            raise RetryableError(f"DRA plugin {info.name} supports none of {list(DRA_SERVICES)}, only {listed}")
        with self._lock:
            for other in self._plugins.get(info.name, ()):
                if other.endpoint == info.endpoint:
                    raise RetryableError(
                        f"endpoint {info.endpoint} already registered for DRA driver plugin {info.name}"
                    )
        return service

    @staticmethod
    def _notify(path: Path, error: str = "") -> None:
        try:
            registry.notify(path, _LIMITS, registered=not error, error=error)
        except CallError as failure:
            raise RetryableError(str(failure)) from failure

    def _remove(self, plugin: DraPlugin) -> None:
        with self._lock:
            instances = self._plugins.get(plugin.name, [])
            if plugin in instances:
                instances.remove(plugin)
        plugin.close()

    def _wipe_absent(self) -> None:
        now, due = monotonic(), []
        with self._lock:
            for name, instances in self._plugins.items():
                if any(plugin.connected for plugin in instances):
                    self._absent_since.pop(name, None)
                elif self._absent_since.setdefault(name, now) + self._wiping_delay_s <= now:
                    self._absent_since[name] = float("inf")
                    due.append(name)
        for name in due:
            self._on_wipe(name)


def _devices(driver: str, answer: PrepareAnswer) -> tuple[DeviceResponse, ...]:
    return tuple(DeviceResponse(driver=driver, **asdict(device)) for device in answer.devices)
