"""The user's kubeconfig, context and namespace, as kubectl chooses them: ``--context`` replaces ``current-context``; of
several files in ``KUBECONFIG`` the first that names a thing counts (kubernetes/client-go tools/clientcmd/loader.go);
without ``-n`` the context's namespace, in a pod the service account's, else ``default``."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from dra_driver.core import yaml_text
from dra_driver.core.errors import ConfigurationError

DEFAULT: Final = "default"
_MAX_BYTES: Final = 16 << 20
_TOLD: Final = 10


class Kubeconfig(Struct, frozen=True, kw_only=True):
    """``path`` None: as kubectl finds it. ``context`` None: the current one."""

    path: str | None = None
    context: str | None = None

    def namespace(self, environ: Mapping[str, str], service_account_dir: Path) -> str:
        """The namespace of a command without ``-n``. Never raises: the connection reports an unreadable file."""
        if self.path is None and self.context is None and environ.get("KUBERNETES_SERVICE_HOST"):
            return _text(service_account_dir / "namespace").strip() or DEFAULT
        contexts = self._contexts(environ)
        found = contexts.get(self.context or self.current_context(environ), {}).get("namespace")
        return found if isinstance(found, str) and found else DEFAULT

    def check(self, environ: Mapping[str, str]) -> None:
        """Raises ConfigurationError for a context that is not there."""
        contexts = self._contexts(environ)
        if self.context is not None and self.context not in contexts:
            there = ", ".join(sorted(contexts)[:_TOLD]) or "none"
            path = kubeconfig_path(self.path, environ)
            raise ConfigurationError(
                f"--context {self.context[:100]}: kubeconfig {path} has no such context; it has {there[:500]}",
                reason="UnknownContext",
            )

    def names(self, environ: Mapping[str, str]) -> list[str]:
        return sorted(self._contexts(environ))

    def current_context(self, environ: Mapping[str, str]) -> str:
        found = (each.get("current-context") for each in self._documents(environ))
        return next((name for name in found if isinstance(name, str) and name), "")

    def _contexts(self, environ: Mapping[str, str]) -> dict[str, dict[str, object]]:
        found: dict[str, dict[str, object]] = {}
        for document in self._documents(environ):
            for entry in document["contexts"]:
                if isinstance(entry, dict) and isinstance(entry.get("name"), str):
                    context = entry.get("context")
                    found.setdefault(entry["name"], context if isinstance(context, dict) else {})
        return found

    def _documents(self, environ: Mapping[str, str]) -> list[dict[str, Any]]:
        return [_document(Path(part)) for part in kubeconfig_path(self.path, environ).split(os.pathsep) if part]


def kubeconfig_path(path: str | None, environ: Mapping[str, str]) -> str:
    """The file, or several separated by ``os.pathsep``; they need not exist."""
    return path or environ.get("KUBECONFIG") or str(Path(environ.get("HOME", "~"), ".kube/config").expanduser())


def _document(path: Path) -> dict[str, object]:
    try:
        found = yaml_text.load(_text(path))
    except ValueError:
        found = None
    contexts = found.get("contexts") if isinstance(found, dict) else None
    return {**(found if isinstance(found, dict) else {}), "contexts": contexts if isinstance(contexts, list) else []}


def _text(path: Path) -> str:
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            return file.read(_MAX_BYTES)
    except OSError:
        return ""
