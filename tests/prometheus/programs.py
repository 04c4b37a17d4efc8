"""Prometheus and Alertmanager as child processes in a folder of their own, and a receiver of alerts."""

import json
import shutil
import subprocess
import threading
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import yaml

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
    """Where Alertmanager sends alerts; ``alerts`` are those that arrived, as it sends them."""

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
    Alertmanager that tells a receiver."""

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
        """The targets that Prometheus scrapes, with their health."""
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
