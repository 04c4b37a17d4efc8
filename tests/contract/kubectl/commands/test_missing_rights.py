"""Every `kubectl dra` command with a token that is good for one namespace names the right that is missing."""

import json
import signal
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from dra_driver.kubectl.commands import kubectl

NAMESPACE = "team-a"
LOCAL = ("pods", "resourceclaims", "resourceclaimtemplates", "events", "persistentvolumeclaims")
NOT_ASKED = frozenset({"version", "migrate", "ui"})
"""Commands that ask no API server for objects: the version, manifests of files, a page that runs on."""
COMMANDS = {
    "devices": ("devices",),
    "topology": ("topology",),
    "claims": ("claims",),
    "capacity": ("capacity",),
    "usage": ("usage",),
    "idle": ("idle",),
    "quota": ("quota",),
    "classes": ("classes", "list"),
    "policy": ("policy", "explain", "gpu-a/gpu-0"),
    "lint": ("lint", "--cluster"),
    "explain": ("explain", "pod/train", "-n", NAMESPACE),
    "doctor": ("doctor",),
    "support-bundle": ("support-bundle", "bundle.tar.gz"),
    "snapshot": ("snapshot", "-n", NAMESPACE, "cluster.json"),
    "drain": ("drain", "gpu-a"),
    "undrain": ("undrain", "gpu-a"),
    "smoke": ("smoke",),
    "hardware-check": ("hardware-check", "gpu-a"),
}


class _Refusing(BaseHTTPRequestHandler):
    """An API server with RBAC: the namespace's lists are empty, all else is refused."""

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        parts = path.split("/")
        if path == "/version":
            self._answer(200, {"gitVersion": "v1.36.2", "major": "1", "minor": "36"})
        elif f"/namespaces/{NAMESPACE}/" in path and parts[-1] in LOCAL:
            items = [POD] if parts[-1] == "pods" else []
            self._answer(200, {"kind": "List", "items": items, "metadata": {}})
        elif path.count("/") <= 3 and path.startswith("/apis/"):
            self._answer(200, {"versions": [{"version": "v1"}], "resources": []})
        else:
            self._refuse()

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if body.get("kind") == "SelfSubjectAccessReview":
            allowed = body["spec"]["resourceAttributes"].get("namespace") == NAMESPACE
            self._answer(201, {**body, "status": {"allowed": allowed}})
        else:
            self._refuse()

    def do_PATCH(self) -> None:
        self._refuse()

    def _refuse(self) -> None:
        message = f'User "u" cannot {self.command.lower()} {self.path.partition("?")[0]}'
        self._answer(403, {"kind": "Status", "code": 403, "reason": "Forbidden", "message": message})

    def _answer(self, status: int, document: object) -> None:
        data = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name is the library's
        pass


POD = {
    "metadata": {"name": "train", "namespace": NAMESPACE, "uid": "u"},
    "spec": {
        "containers": [{"name": "main"}],
        "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "gpus"}],
    },
    "status": {"phase": "Pending"},
}


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    found = ThreadingHTTPServer(("127.0.0.1", 0), _Refusing)
    found.daemon_threads = True
    thread = threading.Thread(target=found.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{found.server_address[1]}"
    found.shutdown()
    found.server_close()
    thread.join(10)


@pytest.fixture
def kubeconfig(server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = {
        "current-context": "c",
        "contexts": [
            {"name": "c", "context": {"cluster": "c", "user": "u"}},
            {"name": "team", "context": {"cluster": "c", "user": "u", "namespace": NAMESPACE}},
        ],
        "clusters": [{"name": "c", "cluster": {"server": server}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
    }
    (tmp_path / "config").write_text(json.dumps(config))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def signals() -> Iterator[None]:
    """Commands that run pods catch signals."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("name", sorted(COMMANDS))
@pytest.mark.usefixtures("kubeconfig", "signals")
def test_the_missing_right_is_named(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """As RBAC names it, with the verb, so that an administrator can grant it."""
    status = kubectl.main(list(COMMANDS[name]))
    printed = capsys.readouterr()
    said = printed.out + printed.err
    assert any(f"{verb} {what}" in said for verb in ("list", "get", "create") for what in CLUSTER_WIDE), said
    assert "403" in said or "lacks rights" in said, said
    assert status != 0 or name in ("snapshot", "support-bundle")


@pytest.mark.parametrize("words", [("explain", "pod/train"), ("doctor", "pod/train")])
@pytest.mark.usefixtures("kubeconfig")
def test_a_pod_is_looked_for_in_the_namespace_of_the_context(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    """Of the one that is chosen; the current one of this user has none, so that it is not found there."""
    kubectl.main([*words, "--context", "team"])
    found = capsys.readouterr()
    kubectl.main(list(words))
    lost = capsys.readouterr()
    assert f"{NAMESPACE}/train" in found.out
    assert any(where in lost.out + lost.err for where in ("train in namespace default", "default/train"))


QUOTAS_AND_CLAIMS = ("resourceclaims", "resourcequotas")
CLUSTER_WIDE = (
    "nodes",
    "daemonsets.apps",
    "resourceslices",
    "deviceclasses",
    "gpunodes",
    "gpupolicies",
    "pods in",
    *QUOTAS_AND_CLAIMS,
)


def test_every_command_is_tried() -> None:
    """A new command has to be added above."""
    assert set(COMMANDS) | NOT_ASKED == set(kubectl.SUBCOMMANDS)
