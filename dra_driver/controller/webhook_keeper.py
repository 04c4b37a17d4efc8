"""Keeps the webhook's certificates and hands over what it serves, in a thread of its own.

The replica that leads makes and rotates them (`webhook_plan`), keeps them in a Secret and writes their CAs into the
ValidatingWebhookConfiguration. Both are objects of the chart, so no right to create any is needed. Every replica writes
what the Secret holds into the folder of the webhook beside it.

Two leaders do not undo each other's work: each write fails when the object was changed after it was read, the bundle is
made from the Secret as it is stored, and the configuration is read before the Secret. So a bundle that leaves out a CA
of a newer Secret is older than that Secret, and the configuration has changed since.
"""

import logging
import threading
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol

from dra_driver.config.webhook_files import POLICIES, SERVING, Attributes, policies_file
from dra_driver.controller.webhook_objects import has_bundle, secret_with, serving_file, stored_of, with_bundle
from dra_driver.controller.webhook_plan import Life, Pair, Step, Stored, Times, done, next_step, problem
from dra_driver.core.errors import ConflictError, KubernetesApiError
from dra_driver.core.files import replace_file
from dra_driver.core.telemetry import controller_metrics as metrics
from dra_driver.core.worker import Worker

log = logging.getLogger(__name__)

THREAD_NAME: Final = "webhook-keeper"
PERIOD_S: Final = 30.0
SOON_S: Final = 1.0
RETRY_S: Final = 5.0
REPLACE_EVERY_S: Final = 600.0
"""Between two certificates that are made at once to replace one that cannot be served. Replicas whose clocks differ by
months would else replace each other's."""
SETTLE_S: Final = 0.1


class KeeperLeadership(Protocol):
    """Whether this replica may act."""

    def leads(self) -> bool: ...


class KeeperApi(Protocol):
    """The part of ``rest.RestClient`` that is needed here. Its requests must end within ``LeaseTimes.request_s``."""

    def get(self, path: str) -> dict[str, Any]: ...
    def update(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]: ...


class Certificates(Protocol):
    """``webhook_pki``, for the names of one webhook."""

    def make(self, now: datetime) -> Pair: ...
    def life(self, pair: Pair) -> Life | str: ...
    def is_certificate(self, ca: bytes) -> bool: ...


class WebhookKeeper:
    """``start`` and ``stop`` once, by one owner; ``wake`` and ``policies_changed`` from any thread."""

    def __init__(
        self,
        api: KeeperApi,
        leadership: KeeperLeadership,
        certificates: Certificates,
        policies: Callable[[], Attributes | None],
        *,
        secret: str,
        configuration: str,
        folder: Path,
        times: Times,
        clock: Callable[[], float],
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """``secret`` and ``configuration`` are paths of the API."""
        self._api, self._leadership, self._certificates, self._policies = api, leadership, certificates, policies
        self._secret, self._configuration, self._folder, self._times = secret, configuration, folder, times
        self._clock, self._now = clock, now
        self._period_s = min(PERIOD_S, times.overlap.total_seconds() / 4)
        self._written: dict[str, bytes] = {}  # of the thread alone, as the next two
        self._due_s = 0.0
        self._replaced_s = float("-inf")
        self._lock = threading.Lock()  # guards the next two
        self._asked = False
        self._problem: str | None = "the certificate was not read yet"
        self._worker = Worker(
            THREAD_NAME,
            self._turn,
            clock=clock,
            on_error=partial(metrics.internal_error, THREAD_NAME),
            after_error_s=PERIOD_S,
            settle_s=SETTLE_S,
        )

    def start(self) -> None:
        self._worker.start()

    def stop(self, timeout_s: float = 2.0) -> None:
        """End after the request in flight. Idempotent; allowed without a start."""
        self._worker.stop(timeout_s)

    def wake(self) -> None:
        """Look at the certificates soon."""
        with self._lock:
            self._asked = True
        self._worker.wake()

    def policies_changed(self) -> None:
        """Hand over the policies' attributes soon."""
        self._worker.wake()

    @property
    def problem(self) -> str | None:
        """Why the webhook may have no good certificate; None while it has."""
        with self._lock:
            return self._problem

    @property
    def hung(self) -> str | None:
        """Why only a restart would help, None otherwise."""
        return self._worker.hung

    def step(self) -> float:
        """Look, and take the next step of the rotation if this replica leads. Returns seconds until the next look."""
        configuration = self._api.get(self._configuration) if self._leadership.leads() else None
        secret = self._api.get(self._secret)
        stored = stored_of(secret, self._certificates.is_certificate)
        took = Step.NOTHING
        if configuration is not None:
            took, stored = self._advance(configuration, secret, stored)
            self._announce(configuration, stored)
        self._hand_over(stored)
        return self._period_s if took is Step.NOTHING else SOON_S

    def hand_over_policies(self) -> None:
        """Write the attributes for the webhook if they have changed."""
        self._write(POLICIES, policies_file(self._policies()))

    def _advance(
        self, configuration: Mapping[str, Any], secret: Mapping[str, Any], stored: Stored
    ) -> tuple[Step, Stored]:
        now = self._now()
        announced = has_bundle(configuration, stored.bundle)
        step = next_step(stored, self._certificates.life, now, self._times, announced=announced)
        if step is Step.REPLACE and stored.current is not None and self._clock() < self._replaced_s + REPLACE_EVERY_S:
            step = Step.NOTHING
        if step is Step.NOTHING or not self._leadership.leads():
            return Step.NOTHING, stored
        if step is Step.REPLACE and stored.current is not None:
            self._replaced_s = self._clock()
        after = done(stored, step, now, lambda: self._certificates.make(now))
        self._api.update(self._secret, secret_with(secret, after))
        why = problem(stored.current, self._certificates.life, now) if stored.current is not None else "there was none"
        level = logging.WARNING if step is Step.REPLACE and stored.current is not None else logging.INFO
        log.log(level, "webhook certificate", extra={"step": step.value, **({"reason": why} if why else {})})
        metrics.webhook_certificate_steps_total.labels(step.value).inc()
        return step, after

    def _announce(self, configuration: Mapping[str, Any], stored: Stored) -> None:
        """Not for one that cannot be served: a former one may still be, and its CA would leave the bundle."""
        if stored.current is None or problem(stored.current, self._certificates.life, self._now()):
            return
        if not has_bundle(configuration, stored.bundle) and self._leadership.leads():
            self._api.update(self._configuration, with_bundle(configuration, stored.bundle))
            log.info("webhook configuration names the certificates' CAs")

    def _hand_over(self, stored: Stored) -> None:
        if stored.current is None:
            raise KubernetesApiError(f"{self._secret} holds no certificate yet: the replica that leads makes one")
        why, life = (
            problem(stored.current, self._certificates.life, self._now()),
            self._certificates.life(stored.current),
        )
        if why is not None or isinstance(life, str):
            raise KubernetesApiError(f"the certificate in {self._secret} cannot be served: {why}")
        self._write(SERVING, serving_file(stored.current, life))

    def _write(self, name: str, content: bytes) -> None:
        path = self._folder / name
        if self._written.get(name) != content or not path.exists():
            replace_file(path, content)
            self._written[name] = content

    def _turn(self) -> float:
        """Seconds until the next turn."""
        self._worker.beat()
        with self._lock:
            asked, self._asked = self._asked, False
        try:
            self.hand_over_policies()
            if asked or self._clock() >= self._due_s:
                self._due_s = self._clock() + RETRY_S
                self._due_s = self._clock() + self.step()
            self._report(None)
        except ConflictError:
            self._due_s = self._clock() + SOON_S  # another replica was faster; what it wrote is read in the next turn
        except KubernetesApiError as error:
            self._report(str(error))
        except OSError as error:
            self._report(f"cannot write below {self._folder}: {error.strerror}")
        return max(0.0, self._due_s - self._clock())

    def _report(self, found: str | None) -> None:
        with self._lock:
            changed, self._problem = found != self._problem, found
        if changed and found is not None:
            log.warning("webhook certificate not ready", extra={"reason": found})
