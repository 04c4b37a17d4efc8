"""Only the wanted part of the client is in memory."""

import subprocess
import sys

SCRIPT = """
import sys
from dra_driver.kube.connection import Connection
from dra_driver.kube.transport import client_parts
parts = client_parts({source!r})
assert parts.configuration and parts.rest_client and parts.load_config
heavy = {{"requests", "oauthlib", "requests_oauthlib", "websocket", "kubernetes"}}
assert not heavy & set(sys.modules)
import kubernetes
assert kubernetes.client.ApiClient and kubernetes.watch.Watch and kubernetes.config.load_kube_config
"""


def run(source: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(source=source)], capture_output=True, check=False, text=True, timeout=30
    )
    assert done.returncode == 0, done.stderr


def test_in_a_pod_neither_requests_nor_websocket_is_loaded() -> None:
    """The node process has 60 MiB; nine of them are saved here. A later import of the client gets all of it."""
    run("in-cluster")


def test_with_a_kubeconfig_neither() -> None:
    """OIDC's libraries come only when a token has to be refreshed."""
    run("kubeconfig")
