"""The scraped processes: two node processes, of which one loses a GPU, a controller, and an exporter with a claim over
its grant beside a process of no claim; Prometheus, Alertmanager and a receiver of alerts as child processes."""

import json
import shutil
import subprocess
import tempfile
import threading
import time
import urllib.request
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import yaml

from dra_driver.kube.connection import Connection
from dra_driver.kube.rest import RestClient
from dra_driver.sim.apiserver.kinds import NAMESPACES, NODES
from dra_driver.sim.apiserver.server import ApiServer
from tests.contract.node.exporter.test_process import Node as ExporterNode
from tests.fakes.kubelet import DraClient, dial, register
from tests.fakes.node_process import DriverProcess, NodeProcess
from tests.fakes.simulated_gpus import SimulatedBackend
from tests.harness.claims_api import CLAIMS, NAMESPACE, SLICES, ClaimMaker
from tests.harness.servers import free_port

NAMES = {"prometheus": ("prometheus",), "alertmanager": ("alertmanager", "prometheus-alertmanager")}
"""Programs by their own name and by that of Debian's package."""
SCRAPE_S = 5
START_S = 60.0


def program(name: str) -> str:
    """The path of a program. Raises FileNotFoundError."""
    found = next((path for each in NAMES[name] if (path := shutil.which(each))), None)
    if found is None:
        raise FileNotFoundError(
            f"no {' or '.join(NAMES[name])} on PATH: apt-get install prometheus prometheus-alertmanager"
        )
    return found


class Receiver:
    def __init__(self) -> None:
        self.alerts: list[dict[str, Any]] = []
        alerts = self.alerts

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                alerts.extend(body["alerts"])
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name is the library's
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/"


@contextmanager
def serving(server: ThreadingHTTPServer) -> Iterator[None]:
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)


class Monitoring:
    """A context manager: a Prometheus that scrapes ``targets`` (labels and port of each) with the chart's rules, and an
    Alertmanager that notifies a receiver."""

    def __init__(self, folder: Path, rules: Sequence[Path], targets: Sequence[tuple[Mapping[str, str], int]]) -> None:
        self._folder, self._rules, self._targets = folder, rules, targets
        self._stack = ExitStack()
        self.receiver = Receiver()
        self.port, self.alert_port = free_port(), free_port()
        self.url = f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> "Monitoring":
        self._stack.enter_context(serving(self.receiver.server))
        self._start("alertmanager", self._alert_config(), self.alert_port)
        self._start("prometheus", self._config(), self.port)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def ask(self, expression: str) -> list[dict[str, Any]]:
        """The series of an instant query. Raises ValueError with Prometheus' own words where it refuses."""
        answer = self._get(f"/api/v1/query?{urlencode({'query': expression})}")
        return list(answer["data"]["result"])

    def up(self) -> list[dict[str, Any]]:
        return list(self._get("/api/v1/targets")["data"]["activeTargets"])

    def version(self) -> str:
        return str(self._get("/api/v1/status/buildinfo")["data"]["version"])

    def _get(self, path: str) -> dict[str, Any]:
        with urllib.request.urlopen(f"{self.url}{path}", timeout=30) as answer:  # noqa: S310 - http, see above
            found: dict[str, Any] = json.loads(answer.read())
        return found

    def _config(self) -> dict[str, Any]:
        jobs: dict[str, list[dict[str, Any]]] = {}
        for labels, port in self._targets:
            rest = {name: value for name, value in labels.items() if name != "job"}
            jobs.setdefault(labels["job"], []).append({"targets": [f"127.0.0.1:{port}"], "labels": rest})
        # As a PodMonitor with honorLabels: the exporter's own labels namespace and pod are those of the claims' pods.
        scrapes = [{"job_name": name, "honor_labels": True, "static_configs": found} for name, found in jobs.items()]
        return {
            "global": {"scrape_interval": f"{SCRAPE_S}s", "evaluation_interval": f"{SCRAPE_S}s"},
            "rule_files": [str(path) for path in self._rules],
            "alerting": {"alertmanagers": [{"static_configs": [{"targets": [f"127.0.0.1:{self.alert_port}"]}]}]},
            "scrape_configs": scrapes,
        }

    def _alert_config(self) -> dict[str, Any]:
        route = {"receiver": "here", "group_wait": "1s", "group_interval": "5s", "group_by": ["alertname"]}
        return {"route": route, "receivers": [{"name": "here", "webhook_configs": [{"url": self.receiver.url}]}]}

    def _start(self, name: str, config: Mapping[str, Any], port: int) -> None:
        file = self._folder / f"{name}.yaml"
        file.write_text(yaml.safe_dump(config))
        data = "--storage.tsdb.path" if name == "prometheus" else "--storage.path"
        more = ["--cluster.listen-address="] if name == "alertmanager" else []
        command = [program(name), f"--config.file={file}", f"{data}={self._folder / name}"]
        log = self._stack.enter_context((self._folder / f"{name}.log").open("wb"))
        child = subprocess.Popen([*command, f"--web.listen-address=127.0.0.1:{port}", *more], stdout=log, stderr=log)
        self._stack.callback(child.wait, 30)
        self._stack.callback(child.terminate)
        until = time.monotonic() + START_S
        while not _is_ready(port):
            if child.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"{name} does not start: {(self._folder / f'{name}.log').read_text()[-2000:]}")
            time.sleep(0.2)


def _is_ready(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/-/ready", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


DRIVER = "gpu.nvidia.com"
SPECS = {"node-a": "4xh100-sxm5-80gb", "node-b": "2xh100-sxm5-80gb"}
JOB = "dra-driver/dra-driver"
FAULT = "ecc"


class Stage:
    """A context manager. ``targets`` are labels and port of each process that serves metrics."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="dra-prometheus-"))
        self._stack = ExitStack()
        self._api = ApiServer()
        self._nodes: dict[str, NodeProcess] = {}
        self.targets: list[tuple[dict[str, str], int]] = []

    def __enter__(self) -> "Stage":
        try:
            self._start()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _start(self) -> None:
        self._stack.callback(shutil.rmtree, self._folder, ignore_errors=True)
        self._api.start()
        self._stack.callback(self._api.stop)
        for name in ("dra-driver", NAMESPACE):
            self._api.store.create(NAMESPACES, {"metadata": {"name": name}})
        for name in SPECS:
            self._api.store.create(NODES, {"metadata": {"name": name}})
        config = self._api.kubeconfig(self._folder / "admin.conf")
        self._rest = RestClient(Connection.load(str(config)))
        for name in SPECS:
            self._start_node(name, config)
        self._start_controller(config)
        self._start_exporter()
        self._prepare_partition()

    def _start_node(self, name: str, config: Path) -> None:
        port, folder = free_port(), self._folder / name
        folder.mkdir()
        process = NodeProcess(
            folder, node_name=name, simulate=SPECS[name], kubeconfig=str(config), http_addr=f"127.0.0.1:{port}"
        ).start()
        self._stack.callback(process.kill)
        process.wait_for(process.registration.exists, START_S)
        register(process.registration)
        process.wait_for(lambda: self._has_slices(name), START_S)
        self._nodes[name] = process
        self.targets.append(({"job": JOB, "pod": f"driver-{name[-1]}", "node": name}, port))

    def _start_exporter(self) -> None:
        folder = self._folder / "exporter"
        folder.mkdir()
        self.exporter = ExporterNode(folder)
        self._stack.callback(self.exporter.kubelet.stop)
        process = self.exporter.exporter()
        self._stack.callback(process.kill)
        process.wait_for(lambda: self.exporter.usage().get("claims"), START_S)
        self.targets.append(({"job": JOB, "pod": "exporter-a", "node": "node-a"}, self.exporter.port))

    def _has_slices(self, name: str) -> bool:
        selector = {"fieldSelector": f"spec.nodeName={name},spec.driver={DRIVER}"}
        return any(item["spec"].get("devices") for item in self._rest.list(SLICES, selector)["items"])

    def _start_controller(self, config: Path) -> None:
        port, folder = free_port(), self._folder / "controller"
        folder.mkdir()
        flags: dict[str, str | None] = {
            "kubeconfig": str(config),
            "http_addr": f"127.0.0.1:{port}",
            "capacity_interval": "60",
            "evict_extended_resource_pods": "true",
        }
        process = DriverProcess("controller", folder, flags).start()
        self._stack.callback(process.kill)
        self.targets.append(({"job": JOB, "pod": "controller-1"}, port))

    def _prepare_partition(self) -> None:
        pool, device = next(
            (item["spec"]["pool"]["name"], device["name"])
            for item in self._rest.list(SLICES)["items"]
            for device in item["spec"].get("devices") or ()
            if device["name"].startswith("gpu-3-mig-1g10gb-19-")
        )
        maker = ClaimMaker(self._rest, node="node-a", driver=DRIVER)
        maker.gpus = [(pool, device)]
        self._prepare("node-a", maker.make(0))

    def turn(self, index: int) -> None:
        maker = ClaimMaker(self._rest, node="node-a", driver=DRIVER)
        claim = maker.make(index % 3)
        self._prepare("node-a", claim)
        with dial(self._nodes["node-a"].dra) as channel:
            DraClient(channel).unprepare(claim["uid"], namespace=claim["namespace"], name=claim["name"])
        maker.drop(claim)

    def fail_one(self) -> None:
        with dial(self._nodes["node-a"].dra) as channel:
            DraClient(channel).prepare(str(uuid.uuid4()), namespace=NAMESPACE, name="no-such-claim")

    def _prepare(self, node: str, claim: dict[str, str]) -> None:
        with dial(self._nodes[node].dra) as channel:
            answer: Any = DraClient(channel).prepare(claim["uid"], namespace=claim["namespace"], name=claim["name"])
        assert answer.claims[claim["uid"]].error == "", f"{CLAIMS}: {answer.claims[claim['uid']].error}"

    def lose_a_gpu(self) -> None:
        gpus = self._simulated_b()
        self._lost, self._failed = (gpu.uuid for gpu in gpus.snapshot().gpus)
        gpus.inject(self._lost, "xid=79")
        gpus.inject(self._failed, FAULT)

    def repair_the_other(self) -> None:
        self._simulated_b().recover(self._failed)

    def _simulated_b(self) -> SimulatedBackend:
        state = self._nodes["node-b"].dra.with_name("simulated-gpus.json")
        return SimulatedBackend.from_spec(SPECS["node-b"], "node-b", state_file=state)
