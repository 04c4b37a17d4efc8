"""Parsers of option values that several processes have. Each raises ValueError with the form that it expects."""

from collections.abc import Callable
from pathlib import PurePosixPath
from typing import get_args

from dra_driver.config.options import Option
from dra_driver.core.telemetry.logs import LogFormat, LogLevel


def absolute(text: str) -> str:
    """An absolute path without repeated slashes."""
    if not text.startswith("/") or "\0" in text:
        raise ValueError("expected an absolute path")
    return str(PurePosixPath(text))


def http_addr(text: str) -> str:
    """HOST:PORT, :PORT, or nothing."""
    host, colon, port = text.rpartition(":")
    if text and not (colon and port.isascii() and port.isdigit() and int(port) < 65536 and "/" not in host):
        raise ValueError("expected HOST:PORT or :PORT, such as :8080 or 127.0.0.1:8080, or nothing to serve no HTTP")
    return text


def switch(text: str) -> bool:
    """``true`` or ``false``, in any case of letters: manifests have both."""
    if text.lower() not in ("true", "false"):
        raise ValueError("expected true or false")
    return text.lower() == "true"


def one_of(*choices: str) -> Callable[[str], str]:
    """A parser that takes these texts alone."""

    def parse(text: str) -> str:
        if text not in choices:
            raise ValueError(f"expected one of {', '.join(choices)}")
        return text

    return parse


def http_endpoint(group: str) -> Option:
    """The option HTTP_ADDR."""
    about = "address that serves /metrics, /healthz and /readyz; none if empty"
    return Option(group, "HTTP_ADDR", "HOST:PORT", about, http_addr)


def log_format(group: str) -> Option:
    """The option LOG_FORMAT."""
    return Option(group, "LOG_FORMAT", "FORMAT", "text (key=value) or json", one_of(*get_args(LogFormat)))


def log_level(group: str) -> Option:
    """The option LOG_LEVEL."""
    return Option(group, "LOG_LEVEL", "LEVEL", "debug, info, warning or error", one_of(*get_args(LogLevel)))
