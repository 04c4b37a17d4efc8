"""The HTTP endpoint over loopback, and the format of log lines."""

import http.client
import io
import json
import logging
import re
import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from dra_driver.core.errors import ConfigurationError
from dra_driver.core.telemetry import logs
from dra_driver.core.telemetry.http import ObservabilityServer

READY: list[str] = []
LIVE: list[str] = []


@pytest.fixture
def server() -> Iterator[ObservabilityServer]:
    READY.clear()
    LIVE.clear()
    made = ObservabilityServer("127.0.0.1:0", lambda: READY, lambda: LIVE)
    made.start()
    yield made
    made.stop()


def ask(server: ObservabilityServer, path: str, method: str = "GET") -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=5)
    try:
        connection.request(method, path)
        response = connection.getresponse()
        return response.status, response.read().decode()
    finally:
        connection.close()


def test_readyz_and_healthz_answer_ok_or_the_reasons(server: ObservabilityServer) -> None:
    assert ask(server, "/readyz") == (200, "ok\n")
    READY.extend(["no driver", "not published"])
    assert ask(server, "/readyz") == (503, "no driver\nnot published\n")
    assert ask(server, "/healthz") == (200, "ok\n")
    LIVE.append("hangs")
    assert ask(server, "/healthz?verbose") == (503, "hangs\n")


def test_remarks_follow_and_do_not_change_the_status() -> None:
    reasons: list[str] = []
    server = ObservabilityServer("127.0.0.1:0", lambda: reasons, list, lambda: ["partitions are withheld"])
    server.start()
    assert ask(server, "/readyz") == (200, "ok\nremark: partitions are withheld\n")
    assert ask(server, "/healthz") == (200, "ok\n")
    reasons.append("no driver")
    assert ask(server, "/readyz") == (503, "no driver\nremark: partitions are withheld\n")
    server.stop()


def test_metrics_are_served_and_other_paths_and_methods_refused(server: ObservabilityServer) -> None:
    assert "dra_driver_published" in ask(server, "/metrics")[1]
    status, text = ask(server, "/etc/passwd")
    assert (status, "/metrics" in text) == (404, True)
    assert ask(server, "/readyz", "POST")[0] == 501
    assert ask(server, "/readyz", "HEAD") == (200, "")


def test_a_failing_check_is_answered(caplog: pytest.LogCaptureFixture) -> None:
    def broken() -> list[str]:
        raise ZeroDivisionError

    server = ObservabilityServer("127.0.0.1:0", broken, broken)
    server.start()
    assert ask(server, "/readyz") == (503, "internal error, see the log\n")
    assert any(record.exc_info for record in caplog.records)
    server.stop()


def test_port_alone_listens_on_all_addresses() -> None:
    """The kubelet probes the pod's address, which may be an IPv6 one."""
    server = ObservabilityServer(":0", lambda: [], lambda: [])
    server.start()
    assert ask(server, "/readyz")[0] == 200
    server.stop()


def test_port_in_use_is_a_configuration_error() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(ConfigurationError, match=r"in use.*choose another --http-addr"):
            ObservabilityServer(f"127.0.0.1:{taken.getsockname()[1]}", lambda: [], lambda: [])


def test_stop_is_immediate_and_repeatable(server: ObservabilityServer) -> None:
    server.stop()
    server.stop()
    with pytest.raises(OSError, match="refused"):
        ask(server, "/readyz")


JWT = "eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJub2RlIn0.c2lnbmF0dXJl"
Emit = Callable[..., str]


@pytest.fixture
def emit() -> Iterator[Emit]:
    """Logs one line and returns what came out; the process' own logging is restored afterwards."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level

    def one(log_format: logs.LogFormat, message: str, *, level: int = logging.INFO, **fields: object) -> str:
        stream = io.StringIO()
        logs.configure(log_format, "info", stream=stream)
        logging.getLogger("dra_driver.node.process.service").log(level, message, **fields)  # type: ignore[arg-type]
        return stream.getvalue()

    yield one
    root.handlers[:] = handlers
    root.setLevel(level)


def test_text_line_has_time_level_place_message_and_facts(emit: Emit) -> None:
    line = emit("text", "claim prepared", extra={"claim": "default/train", "devices": ["gpu-0", "gpu-1"], "ms": 2.5})
    assert re.fullmatch(
        r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z INFO  node\.process\.service claim prepared "
        r"claim=default/train devices=gpu-0,gpu-1 ms=2\.5\n",
        line,
    )


def test_json_line_holds_the_same_facts_as_fields(emit: Emit) -> None:
    fields = json.loads(emit("json", "claim prepared", extra={"claim": "default/train", "count": 2}))
    assert fields.pop("time").endswith("Z")
    assert fields == {
        "level": "info",
        "logger": "node.process.service",
        "message": "claim prepared",
        "claim": "default/train",
        "count": 2,
    }


@pytest.mark.parametrize(
    ("value", "shown"), [("", '""'), ("a b", '"a b"'), ('say "x"', r'"say \"x\""'), (None, "None")]
)
def test_values_that_would_break_the_line_are_quoted(emit: Emit, value: object, shown: str) -> None:
    assert emit("text", "m", extra={"k": value}).endswith(f"m k={shown}\n")


def test_no_text_can_forge_a_second_line(emit: Emit) -> None:
    """Names and errors come from other programs and users."""
    line = emit("text", "bad name a\nERROR forged", extra={"k": "x\n2026 ERROR forged"})
    assert line.count("\n") == 1


@pytest.mark.parametrize("log_format", ["text", "json"])
@pytest.mark.parametrize("secret", [f"Bearer {JWT}", "authorization: bearer abc.def-123", f"token {JWT} expired"])
def test_credentials_are_removed_from_every_line(emit: Emit, log_format: logs.LogFormat, secret: str) -> None:
    for line in (
        emit(log_format, secret),
        emit(log_format, "m", extra={"error": secret}),
        emit(log_format, "m", exc_info=(ValueError, ValueError(secret), None)),
    ):
        assert "[redacted]" in line
        assert JWT not in line
        assert "abc.def-123" not in line


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_traceback_is_kept(emit: Emit, log_format: logs.LogFormat) -> None:
    try:
        _ = 1 // 0
    except ZeroDivisionError:
        line = emit(log_format, "m", level=logging.ERROR, exc_info=True)
    assert "ZeroDivisionError: integer division" in line
    assert "test_traceback_is_kept" in line


def test_huge_value_is_cut_and_configuring_twice_does_not_double_the_lines(emit: Emit) -> None:
    assert len(emit("text", "m", extra={"k": "x" * 1_000_000})) < 5000
    assert emit("text", "m").count("\n") == 1


def test_deferred_lines_are_written_later_and_warnings_at_once(emit: Emit) -> None:
    """The kubelet's answer does not wait for the log; a warning may be the last word of a process that hangs."""
    stream = io.StringIO()
    logs.configure(stream=stream)
    log, lines = logging.getLogger("dra_driver.deferred"), logs.Deferred()
    with lines:
        log.info("one", extra={"n": 1})
        log.warning("two")
    log.info("three")
    assert [line.split()[3] for line in stream.getvalue().splitlines()] == ["two", "three"]
    lines.write()
    lines.write()
    assert stream.getvalue().splitlines()[2].endswith("one n=1")
    assert len(stream.getvalue().splitlines()) == 3


def test_another_threads_lines_are_not_deferred(emit: Emit) -> None:
    stream = io.StringIO()
    logs.configure(stream=stream)
    with logs.Deferred():
        thread = threading.Thread(target=logging.getLogger("dra_driver.other").info, args=("now",))
        thread.start()
        thread.join(5)
    assert "now" in stream.getvalue()
