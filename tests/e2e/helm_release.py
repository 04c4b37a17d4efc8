"""The chart as a release of a real cluster, by Helm's own code (helm-python-sdk)."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.fakes import chart

NAME = NAMESPACE = "dra-driver"
TIMEOUT_S = 240


class Release:
    """The release ``dra-driver``. Not thread-safe; errors are Helm's own (HelmError)."""

    def __init__(self, kubeconfig: str) -> None:
        self._helm = chart.renderer().helm_python
        self._config = self._helm.Config(kubeconfig_path=kubeconfig, namespace=NAMESPACE)

    def close(self) -> None:
        self._config.close()

    def install(
        self,
        values: Mapping[str, Any] | None = None,
        *,
        path: Path = chart.CHART,
        take_ownership: bool = False,
        wait: bool = False,
    ) -> str:
        """As ``helm install --create-namespace``; returns the notes."""
        options: dict[str, Any] = {"namespace": NAMESPACE, "create_namespace": True, "timeout_seconds": TIMEOUT_S}
        if take_ownership:
            options |= {"take_ownership": True, "force_conflicts": True}
        return self._run("helm_install", path, values, options, wait)

    def upgrade(self, values: Mapping[str, Any] | None = None, *, path: Path = chart.CHART, wait: bool = False) -> str:
        options: dict[str, Any] = {"namespace": NAMESPACE, "timeout_seconds": TIMEOUT_S}
        return self._run("helm_upgrade", path, values, options, wait)

    def _run(
        self, function: str, path: Path, values: Mapping[str, Any] | None, options: dict[str, Any], wait: bool
    ) -> str:
        """With options that the package's own methods do not have: --take-ownership."""
        native = self._helm._native
        given = options | ({"wait": "watcher"} if wait else {})
        answer = native.call_string(
            function,
            self._config._raw(),
            native.HANDLE(0),
            native.HANDLE(0),
            str(path),
            NAME,
            json.dumps(values or {}),
            json.dumps(given),
        )
        return str(json.loads(answer).get("notes", ""))

    def rollback(self, revision: int, *, wait: bool = False) -> None:
        self._config.rollback(NAME, version=revision, timeout=TIMEOUT_S, wait="watcher" if wait else None)

    def uninstall(self) -> None:
        self._config.uninstall(NAME, timeout=TIMEOUT_S, ignore_not_found=True, wait="watcher")

    def history(self) -> list[tuple[int, str, str]]:
        rows = self._config.history(NAME)
        return [(row.get("revision", row.get("version")), row.get("chart", ""), row.get("status", "")) for row in rows]


@contextmanager
def release(kubeconfig: str) -> Iterator[Release]:
    made = Release(kubeconfig)
    try:
        yield made
    finally:
        made.uninstall()
        made.close()
