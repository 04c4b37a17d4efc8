"""Every `kubectl dra` command with a token that is good for one namespace names the right that is missing."""

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from dra_driver.kubectl.commands import kubectl
from tests.fakes.scripted_http import Exchange, ScriptedServer

NAMESPACE = "team-a"
LOCAL = ("pods", "resourceclaims", "resourceclaimtemplates", "events", "persistentvolumeclaims")
NOT_ASKED = frozenset({"version", "migrate", "node-template", "ui"})
"""Commands that ask no API server for objects: the version, manifests of files, simulated GPUs, a page that runs on."""
COMMANDS = {
    **{name: (name,) for name in ("devices", "topology", "claims", "capacity", "usage", "top", "idle", "quota")},
    "gpu": ("gpu", "reset", "gpu-a/gpu-0"),
    "doctor": ("doctor",),
    "smoke": ("smoke",),
    "classes": ("classes", "list"),
    "kueue": ("kueue", "config"),
    "policy": ("policy", "explain", "gpu-a/gpu-0"),
    "lint": ("lint", "--cluster"),
    "explain": ("explain", "pod/train", "-n", NAMESPACE),
    "support-bundle": ("support-bundle", "bundle.tar.gz"),
    "snapshot": ("snapshot", "-n", NAMESPACE, "cluster.json"),
    **{name: (name, "gpu-a") for name in ("drain", "undrain", "hardware-check")},
}


def answer(exchange: Exchange) -> None:
    """An API server with RBAC: the namespace's lists are empty, all else is refused."""
    seen = exchange.seen
    parts = seen.path.split("/")
    if seen.method == "POST" and seen.body.get("kind") == "SelfSubjectAccessReview":
        allowed = seen.body["spec"]["resourceAttributes"].get("namespace") == NAMESPACE
        exchange.json({**seen.body, "status": {"allowed": allowed}}, 201)
    elif seen.method == "GET" and seen.path == "/version":
        exchange.json({"gitVersion": "v1.36.2", "major": "1", "minor": "36"})
    elif seen.method == "GET" and f"/namespaces/{NAMESPACE}/" in seen.path and parts[-1] in LOCAL:
        exchange.json({"kind": "List", "items": [POD] if parts[-1] == "pods" else [], "metadata": {}})
    elif seen.method == "GET" and len(parts) <= 4 and seen.path.startswith("/apis/"):
        exchange.json({"versions": [{"version": "v1"}], "resources": []})
    else:
        message = f'User "u" cannot {seen.method.lower()} {seen.path}'
        exchange.json({"kind": "Status", "code": 403, "reason": "Forbidden", "message": message}, 403)


POD = {
    "metadata": {"name": "train", "namespace": NAMESPACE, "uid": "u"},
    "spec": {
        "containers": [{"name": "main"}],
        "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "gpus"}],
    },
    "status": {"phase": "Pending"},
}


@pytest.fixture
def kubeconfig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with ScriptedServer(answer) as server:
        config = json.loads(server.kubeconfig())
        team = {"name": "team", "context": {"cluster": "s", "user": "u", "namespace": NAMESPACE}}
        (tmp_path / "config").write_text(json.dumps({**config, "contexts": [*config["contexts"], team]}))
        monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
        monkeypatch.chdir(tmp_path)
        yield


@pytest.fixture
def signals() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("name", sorted(COMMANDS))
@pytest.mark.usefixtures("kubeconfig", "signals")
def test_the_missing_right_is_named(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    status = kubectl.main(list(COMMANDS[name]))
    printed = capsys.readouterr()
    said = printed.out + printed.err
    assert any(f"{verb} {what}" in said for verb in ("list", "get", "create") for what in CLUSTER_WIDE), said
    assert "403" in said or "lacks permissions" in said, said
    assert status != 0 or name in ("snapshot", "support-bundle")


@pytest.mark.parametrize("words", [("explain", "pod/train"), ("doctor", "pod/train")])
@pytest.mark.usefixtures("kubeconfig")
def test_a_pod_is_looked_for_in_the_namespace_of_the_context(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    kubectl.main([*words, "--context", "team"])
    found = capsys.readouterr()
    kubectl.main(list(words))
    lost = capsys.readouterr()
    assert f"{NAMESPACE}/train" in found.out
    assert any(where in lost.out + lost.err for where in ("train in namespace default", "default/train"))


CLUSTER_WIDE = (
    *("nodes", "daemonsets.apps", "resourceslices", "deviceclasses", "gpunodes", "gpupolicies", "pods in"),
    *("resourceclaims", "resourcequotas"),
)


def test_every_command_is_tried() -> None:
    assert set(COMMANDS) | NOT_ASKED == set(kubectl.SUBCOMMANDS)
