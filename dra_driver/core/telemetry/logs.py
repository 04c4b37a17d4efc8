"""The format of log lines: one line per event on stderr, ``key=value`` or JSON.

    2026-11-21T09:30:00.123Z INFO  kubelet.service claim prepared claim=default/train devices=gpu-0

Every ``extra`` of a record is printed: a string, a number or a short list. Bearer tokens and JSON web tokens are
removed from every line, because errors of libraries can contain them.
"""

import json
import logging
import re
import sys
import threading
import time
from typing import Literal, TextIO

LogFormat = Literal["text", "json"]
LogLevel = Literal["debug", "info", "warning", "error"]

# The attributes of every LogRecord; any other attribute came through ``extra``.
_STANDARD = frozenset(vars(logging.LogRecord("", 0, "", 0, "", None, None))) | {"message", "asctime", "taskName"}
# The negative lookbehind keeps one attempt for each run of these characters: `eyJ-eyJ-eyJ-...` takes linear time.
_CREDENTIALS = re.compile(r"(?i)(bearer\s++)[\w.~+/=-]+|(?<![\w-])(?=[\w-]*?\beyJ[\w-]{8})[\w-]++\.[\w-]++\.[\w-]*+")
_NEEDS_QUOTES = re.compile(r'[\s="\\\x00-\x1f\x7f]')
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_MAX_VALUE = 4096


def configure(log_format: LogFormat = "text", level: LogLevel = "info", *, stream: TextIO | None = None) -> None:
    """Sends all logging of this process to ``stream`` (stderr) in one format; a repeat replaces the former setting."""
    handler = _Handler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter() if log_format == "json" else TextFormatter())
    root = logging.getLogger()
    for former in root.handlers[:]:
        root.removeHandler(former)
    root.addHandler(handler)
    root.setLevel(level.upper())
    # The HTTP pool warns about each retried connection; callers in this project report the failure itself, once.
    logging.getLogger("urllib3").setLevel(logging.ERROR)
    # No line names the place, thread or process of its call (docs.python.org, Logging HOWTO, "Optimization").
    logging._srcfile = None
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False


class Deferred:
    """Lines of one thread that are written later, so that the thread does not wait for them. ``with deferred:`` keeps
    its lines, except warnings and errors; `write` writes them, from any thread, with their original times."""

    def __init__(self) -> None:
        self._kept: list[tuple[logging.Handler, logging.LogRecord]] = []

    def __enter__(self) -> None:
        _of_thread.deferred = self

    def __exit__(self, *_: object) -> None:
        _of_thread.deferred = None

    def keep(self, handler: logging.Handler, record: logging.LogRecord) -> None:
        self._kept.append((handler, record))

    def write(self) -> None:
        kept, self._kept = self._kept, []
        for handler, record in kept:
            handler.handle(record)


class _OfThread(threading.local):
    deferred: Deferred | None = None


_of_thread = _OfThread()


class _Handler(logging.StreamHandler[TextIO]):
    def handle(self, record: logging.LogRecord) -> bool:
        deferred = _of_thread.deferred
        if deferred is None or record.levelno >= logging.WARNING:
            return super().handle(record)
        deferred.keep(self, record)
        return True


class TextFormatter(logging.Formatter):
    """``time LEVEL logger message key=value ...``; a traceback follows on lines of its own."""

    def format(self, record: logging.LogRecord) -> str:
        parts = [_timestamp(record), f"{record.levelname:<5}", _short_name(record), _one_line(record.getMessage())]
        parts += [f"{key}={_text_value(value)}" for key, value in extras(record).items()]
        line = " ".join(parts)
        if record.exc_info:
            line = f"{line}\n{self.formatException(record.exc_info)}"
        return redact(line)


class JsonFormatter(logging.Formatter):
    """One JSON object a line: ``time``, ``level``, ``logger``, ``message``, the extras, perhaps ``traceback``."""

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, object] = {
            "time": _timestamp(record),
            "level": record.levelname.lower(),
            "logger": _short_name(record),
            "message": record.getMessage(),
        }
        fields |= {key: value for key, value in extras(record).items() if key not in fields}
        if record.exc_info:
            fields["traceback"] = self.formatException(record.exc_info)
        return redact(json.dumps(fields, default=_bounded, ensure_ascii=False))


def extras(record: logging.LogRecord) -> dict[str, object]:
    """Return the ``extra`` fields of the caller, in their order."""
    return {key: value for key, value in vars(record).items() if key not in _STANDARD}


def redact(text: str) -> str:
    """``text`` without bearer tokens and JSON web tokens."""
    lower = text.lower()
    if "bearer" not in lower and "eyj" not in lower:  # nearly every line; the search below takes as long as the rest
        return text
    return _CREDENTIALS.sub(lambda match: f"{match.group(1) or ''}[redacted]", text)


def _timestamp(record: logging.LogRecord) -> str:
    whole = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
    return f"{whole}.{int(record.msecs):03d}Z"


def _short_name(record: logging.LogRecord) -> str:
    return record.name.removeprefix("dra_driver.")


def _one_line(text: str) -> str:
    return text if text.isprintable() else _CONTROL.sub(lambda match: repr(match.group())[1:-1], text)


def _text_value(value: object) -> str:
    text = _bounded(value) if not isinstance(value, list | tuple) else ",".join(map(_bounded, value))
    return json.dumps(text, ensure_ascii=False) if not text or _NEEDS_QUOTES.search(text) else text


def _bounded(value: object) -> str:
    text = str(value)
    return text if len(text) <= _MAX_VALUE else f"{text[:_MAX_VALUE]}...({len(text)} characters)"
