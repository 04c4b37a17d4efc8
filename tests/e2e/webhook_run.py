"""The webhook of the chart on a real API server: its objects under names of a run's own, and the real processes.

Controllers and webhooks run on this host, which has to be a node: the Service leads to its address. So it needs neither
an image nor pods, but a cluster that reaches Services (kube-proxy).
"""

import base64
import json
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import yaml

from dra_driver.controller.webhook_objects import secret_with
from dra_driver.controller.webhook_part import dns_names
from dra_driver.controller.webhook_pki import make_pair
from dra_driver.controller.webhook_plan import Stored
from dra_driver.core.errors import KubernetesApiError
from dra_driver.kube import paths
from dra_driver.kube.connection import Connection
from dra_driver.kube.rest import RestClient
from tests.e2e.cluster import ROOT, wait
from tests.fakes import chart
from tests.fakes.node_process import DriverProcess

Obj = dict[str, Any]
LIFETIME_S = 300
"""Of certificates: the overlap of a rotation is 30 s."""
READY_S = 60.0
DENIED = "denied the request: "


def answer(request: Callable[[], object]) -> str | None:
    """What the API server says against it; None if it takes it."""
    try:
        request()
    except KubernetesApiError as error:
        return str(error)
    return None


def own_address(rest: RestClient) -> str | None:
    """The address of the node that this host is; None if it is none."""
    for node in rest.list(paths.nodes())["items"]:
        for address in node["status"].get("addresses", ()):
            with socket.socket() as probe:
                try:
                    probe.bind((address["address"], 0))
                except OSError:
                    continue
                return str(address["address"])
    return None


def free_port(address: str) -> int:
    with socket.socket() as probe:
        probe.bind((address, 0))
        return int(probe.getsockname()[1])


@dataclass
class WebhookRun:
    """Two replicas: a controller and a webhook each. ``rest`` is an administrator's."""

    rest: RestClient
    kubeconfig: str
    address: str
    suffix: str
    folder: Path
    controllers: list[DriverProcess] = field(default_factory=list)
    webhooks: list[DriverProcess] = field(default_factory=list)
    ports: list[int] = field(default_factory=list)

    @property
    def namespace(self) -> str:
        return f"webhook-{self.suffix}"

    @property
    def name(self) -> str:
        return f"dra-driver-webhook-{self.suffix}"

    def start(self) -> None:
        for number in range(2):
            folder = self.folder / str(number)
            folder.mkdir()
            port = free_port(self.address)
            shared: dict[str, str | None] = {"webhook_dir": str(folder), "http_addr": "127.0.0.1:0"}
            controller = shared | {
                "kubeconfig": self.kubeconfig,
                "namespace": self.namespace,
                "pod_name": f"replica-{number}",
                "policy_status": "false",
                "webhook_name": self.name,
                "webhook_certificate_lifetime": str(LIFETIME_S),
                "lease_duration": "6",
            }
            own = self.folder / f"{number}-logs"
            for name in ("controller", "webhook"):
                (own / name).mkdir(parents=True)
            self.controllers.append(DriverProcess("controller", own / "controller", controller).start())
            webhook = shared | {"webhook_addr": f"{self.address}:{port}"}
            self.webhooks.append(DriverProcess("webhook", own / "webhook", webhook).start())
            self.ports.append(port)
        self.rest.create(f"/apis/discovery.k8s.io/v1/namespaces/{self.namespace}/endpointslices", self._endpoints())

    def stop(self) -> None:
        for process in (*self.controllers, *self.webhooks):
            process.kill()

    def logs(self) -> str:
        return "\n".join(process.text for process in (*self.controllers, *self.webhooks))

    def objects(self) -> list[tuple[str, Obj]]:
        """Collection and object: what the chart makes, with a Service whose endpoints are made by hand."""
        made = chart.objects({"webhook": {"enabled": True}}, namespace=self.namespace)
        secret, service, hooks = (
            chart.found(made, kind, "dra-driver-webhook")
            for kind in ("Secret", "Service", "ValidatingWebhookConfiguration")
        )
        for obj in (secret, service, hooks):
            obj["metadata"]["name"] = self.name
        del service["spec"]["selector"]
        service["spec"]["ports"][0].pop("targetPort")
        for each in hooks["webhooks"]:
            each["clientConfig"]["service"]["name"] = self.name
        base = f"/api/v1/namespaces/{self.namespace}"
        return [
            ("/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": self.namespace}}),
            (f"{base}/secrets", secret),
            (f"{base}/services", service),
            ("/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations", hooks),
        ]

    def _endpoints(self) -> Obj:
        """One slice for each replica would need two: ports belong to a slice. The second replica is a spare."""
        labels = {"kubernetes.io/service-name": self.name}
        return {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {"name": self.name, "labels": labels},
            "addressType": "IPv4",
            "endpoints": [{"addresses": [self.address], "conditions": {"ready": True}}],
            "ports": [{"name": "https", "port": self.ports[0], "protocol": "TCP"}],
        }

    def ask(self, manifest: Obj, namespace: str = "default") -> str | None:
        """A dry run of its creation."""
        version, kind = manifest["apiVersion"], manifest["kind"]
        plural = {
            "ResourceClaim": f"namespaces/{namespace}/resourceclaims",
            "ResourceClaimTemplate": f"namespaces/{namespace}/resourceclaimtemplates",
            "DeviceClass": "deviceclasses",
            "GpuPolicy": "gpupolicies",
        }[kind]
        metadata = {key: value for key, value in manifest["metadata"].items() if key != "namespace"}
        body = {**manifest, "metadata": metadata}
        return answer(lambda: self.rest.create(f"/apis/{version}/{plural}", body, dry_run=True))

    def refused(self, manifest: Obj) -> bool:
        """By this webhook."""
        return DENIED in (self.ask(manifest) or "")

    def until_refused(self, manifest: Obj, timeout_s: float = READY_S) -> None:
        wait(lambda: None if self.refused(manifest) else f"it passes: {self.ask(manifest)}", timeout_s)

    def secret(self) -> Obj:
        return self.rest.get(paths.secret(self.namespace, self.name))

    def bundle(self) -> bytes:
        """The CAs that the API server has been told."""
        found = self.rest.get(paths.validating_webhook_configuration(self.name))["webhooks"][0]
        return base64.b64decode(found["clientConfig"].get("caBundle", ""))

    def put_certificate(self, made_at: datetime, lifetime: timedelta) -> bytes:
        """One of that age in place of the stored one; returns its CA."""
        pair = make_pair(dns_names(self.name, self.namespace), made_at, lifetime)
        stored = Stored(current=pair)
        self.rest.update(paths.secret(self.namespace, self.name), secret_with(self.secret(), stored))
        return pair.ca


@contextmanager
def webhook_run(kubeconfig: str) -> Iterator[WebhookRun | None]:
    """Everything that a run needs, removed at its end; None where this host is no node."""
    rest = RestClient(Connection.load(kubeconfig))
    address = own_address(rest)
    if address is None:
        yield None
        return
    folder = Path(tempfile.mkdtemp(prefix="dra-webhook-"))
    run = WebhookRun(rest, kubeconfig, address, os.urandom(3).hex(), folder)
    made: list[str] = []
    try:
        for collection, obj in run.objects():
            rest.create(collection, obj)
            made.append(f"{collection}/{obj['metadata']['name']}")
        run.start()
        yield run
    finally:
        run.stop()
        for path in reversed(made):
            rest.delete(path)
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def policy_crd(rest: RestClient) -> Iterator[None]:
    """The CustomResourceDefinition, which is deleted again if it did not exist before."""
    crds = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    crd = yaml.safe_load((ROOT / "crds" / "gpu.dra-driver.io_gpupolicies.yaml").read_text())
    path = f"{crds}/{crd['metadata']['name']}"
    made = answer(lambda: rest.get(path)) is not None
    if made:
        rest.create(crds, crd)
    wait(lambda: answer(lambda: rest.get(paths.gpu_policies())), 30.0)
    yield
    if made:
        rest.delete(path)


def kubectl_apply(manifest: Obj) -> str | None:
    """What kubectl prints for a dry run at the server; None without a kubectl."""
    program = os.environ.get("KUBECTL") or shutil.which("kubectl")
    if program is None:
        return None
    command = [program, "--kubeconfig", os.environ["KUBECONFIG"], "create", "--dry-run=server", "-f", "-"]
    done = subprocess.run(command, input=json.dumps(manifest), capture_output=True, text=True, timeout=60, check=False)
    return done.stdout + done.stderr


def milliseconds(run: WebhookRun, manifest: Obj, count: int) -> list[float]:
    """Of so many dry runs, sorted."""
    took = []
    for _ in range(count):
        began = time.monotonic()
        run.ask(manifest)
        took.append((time.monotonic() - began) * 1000)
    return sorted(took)
