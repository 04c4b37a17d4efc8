"""The controller's part of the webhook: the watch of policies and the keeper of certificates, connected.

Imported only where the webhook is on: ``cryptography`` takes more memory than all the rest of the controller's code.
"""

from datetime import datetime, timedelta
from pathlib import Path

from msgspec import Struct

from dra_driver.config.controller_settings import ControllerSettings
from dra_driver.controller.election import awake_clock
from dra_driver.controller.webhook_keeper import KeeperLeadership, WebhookKeeper
from dra_driver.controller.webhook_pki import CertificateReader, make_pair
from dra_driver.controller.webhook_plan import Life, Pair, Times
from dra_driver.controller.webhook_policies import WebhookPolicies
from dra_driver.kube import paths
from dra_driver.kube.rest import RestClient


class _Certificates(Struct, frozen=True):
    reader: CertificateReader
    lifetime: timedelta

    def make(self, now: datetime) -> Pair:
        return make_pair(self.reader.names, now, self.lifetime)

    def life(self, pair: Pair) -> Life | str:
        return self.reader.life(pair)

    def is_certificate(self, ca: bytes) -> bool:
        return self.reader.is_certificate(ca)


def dns_names(service: str, namespace: str) -> list[str]:
    """What API servers call a Service by; they verify the first (apiserver pkg/util/webhook/client.go)."""
    return [f"{service}.{namespace}.svc", f"{service}.{namespace}", service, f"{service}.{namespace}.svc.cluster.local"]


class WebhookPart:
    """``start`` and ``stop`` once, by one owner; the rest from any thread.

    ``bounded`` is a client whose requests end before another replica may act.
    """

    def __init__(
        self, rest: RestClient, bounded: RestClient, leadership: KeeperLeadership, settings: ControllerSettings
    ) -> None:
        lifetime = timedelta(seconds=settings.webhook_certificate_lifetime)
        name = settings.webhook_name
        self._policies = WebhookPolicies(rest, self._policies_changed)
        self._keeper = WebhookKeeper(
            bounded,
            leadership,
            _Certificates(CertificateReader(dns_names(name, settings.namespace)), lifetime),
            self._policies.attributes,
            secret=paths.secret(settings.namespace, name),
            configuration=paths.validating_webhook_configuration(name),
            folder=Path(settings.webhook_dir or ""),
            times=Times.of(lifetime),
            clock=awake_clock,
        )

    def start(self) -> None:
        self._policies.start()
        self._keeper.start()

    def stop(self) -> None:
        """Idempotent."""
        self._policies.stop()
        self._keeper.stop()

    def wake(self) -> None:
        self._keeper.wake()

    def _policies_changed(self) -> None:
        self._keeper.policies_changed()

    @property
    def problem(self) -> str | None:
        return self._keeper.problem

    @property
    def hung(self) -> str | None:
        return self._keeper.hung
