"""A running ``dra-driver webhook`` with a certificate, and clients that speak to it as an API server does."""

import http.client
import json
import socket
import ssl
import time
import urllib.error
import urllib.request
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from dra_driver.config.webhook_files import POLICIES, SERVING, Attributes, policies_file
from dra_driver.controller.webhook_objects import serving_file
from dra_driver.controller.webhook_pki import CertificateReader, make_pair
from dra_driver.controller.webhook_plan import Life, Pair
from dra_driver.core.files import replace_file
from tests.fakes.node_process import DriverProcess

NAME = "dra-driver-webhook.dra-driver.svc"
LIFETIME = timedelta(days=1)
PATIENCE_S = 60.0


class Webhook(DriverProcess):
    """One process; ``hand_over`` is what the controller does."""

    def __init__(self, folder: Path, **flags: str) -> None:
        own: dict[str, str | None] = {
            "webhook_dir": str(folder),
            "webhook_addr": "127.0.0.1:0",
            "http_addr": "127.0.0.1:0",
            "log_format": "json",
        }
        super().__init__("webhook", folder, own | flags)

    def hand_over(self, pair: Pair | None = None) -> Pair:
        """A certificate, a new one unless given, and that there are no policies."""
        made = pair or make_pair([NAME], datetime.now(UTC), LIFETIME)
        life = CertificateReader([NAME]).life(made)
        assert isinstance(life, Life)
        replace_file(self.folder / SERVING, serving_file(made, life))
        self.hand_over_policies({})
        return made

    def hand_over_policies(self, policies: Attributes | None) -> None:
        replace_file(self.folder / POLICIES, policies_file(policies))

    def ports(self) -> list[int]:
        lines = [json.loads(line) for line in self.text.splitlines() if line.startswith("{")]
        return [int(line["port"]) for line in lines if "port" in line]

    @property
    def port(self) -> int:
        """That of reviews."""
        return self.ports()[-1]

    def until_serving(self) -> "Webhook":
        self.wait_for(lambda: '"started"' in self.text and self.page("/readyz")[0] == 200, timeout_s=60)
        return self

    def page(self, path: str) -> tuple[int, str]:
        """Status and text of the endpoint for probes."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.ports()[0]}{path}", timeout=10) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def ask(self, cas: bytes, body: bytes, *, once: bool = False) -> tuple[int, Any]:
        """One review on a connection of its own."""
        with closing(Client(self.port, cas)) as client:
            return client.review(body, once=once)


class Client(http.client.HTTPSConnection):
    """A kept connection, as the API server has one."""

    def __init__(self, port: int, cas: bytes, timeout_s: float = 30.0) -> None:
        self._trusted = ssl.create_default_context(cadata=cas.decode())
        super().__init__("127.0.0.1", port, timeout=timeout_s, context=self._trusted)

    def connect(self) -> None:
        plain = socket.create_connection((self.host, self.port), self.timeout)
        try:
            self.sock = self._trusted.wrap_socket(plain, server_hostname=NAME)
        except BaseException:
            plain.close()
            raise

    def review(self, body: bytes, *, once: bool = False) -> tuple[int, Any]:
        """Status and answer. Asked again where a busy machine could not judge it in time, unless ``once``."""
        status, said = self._review(body)
        deadline = time.monotonic() + PATIENCE_S
        while status == 503 and not once and time.monotonic() < deadline:
            status, said = self._review(body)
        return status, said

    def _review(self, body: bytes) -> tuple[int, Any]:
        self.request("POST", "/validate?timeout=3s", body, {"Content-Type": "application/json"})
        answer = self.getresponse()
        said = answer.read()
        return answer.status, json.loads(said) if answer.status == 200 else said.decode()
