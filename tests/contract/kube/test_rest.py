"""The REST client over real sockets, against a server that misbehaves on purpose."""

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from dra_driver.core.errors import ApiUnreachableError, KubernetesApiError, NotFoundError, UnauthorizedError
from dra_driver.kube.access import service_account
from dra_driver.kube.connection import Connection, DirectSession
from dra_driver.kube.rest import RestClient, Timeouts
from tests.fakes.scripted_http import Exchange, ScriptedServer
from tests.harness.raising import fails

FAST = Timeouts(connect_s=1.0, read_s=0.3, total_s=0.6)


def status(code: int, reason: str, message: str = "no") -> dict[str, object]:
    fields = {"status": "Failure", "code": code, "reason": reason, "message": message}
    return {"kind": "Status", "apiVersion": "v1", **fields}


def client(server: ScriptedServer, tmp_path: Path, **options: Any) -> RestClient:
    path = tmp_path / "kubeconfig"
    path.write_text(server.kubeconfig())
    return RestClient(Connection.load(str(path)), **({"timeouts": FAST} | options))


def drip(part: bytes = b" ") -> Iterator[bytes]:
    """Each part comes in time, the whole answer never does."""
    for _ in range(100):
        time.sleep(0.05)
        yield part


def in_cluster(server: ScriptedServer, tmp_path: Path, token: str) -> tuple[RestClient, Path]:
    """A connection as in a pod, but over HTTP: the service account's address is always https."""
    (tmp_path / "token").write_text(token)
    (tmp_path / "ca.crt").write_text("unused")
    environ = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": "1"}

    def session() -> DirectSession:
        return DirectSession(replace(service_account(environ, tmp_path), server=server.url))

    return RestClient(Connection("the test", session), timeouts=FAST), tmp_path / "token"


def test_requests_carry_the_token_of_the_kubeconfig(tmp_path: Path) -> None:
    """Without this header every request would silently be made as system:anonymous."""
    with ScriptedServer(lambda x: x.json({"ok": True})) as server:
        assert client(server, tmp_path).get("/version") == {"ok": True}
    assert server.requests[0].headers["authorization"] == "Bearer secret"
    assert server.requests[0].headers["User-Agent"].startswith("dra-driver/")


def test_a_rotated_service_account_token_is_used_after_a_401(tmp_path: Path) -> None:
    """The kubelet replaces the token file; a 401 makes the client read it again, once."""
    new = "Bearer new"

    def script(x: Exchange) -> None:
        good = x.seen.headers["authorization"] == new
        x.json({"ok": True}) if good else x.json(status(401, "Unauthorized"), 401)

    with ScriptedServer(script) as server:
        rest, token = in_cluster(server, tmp_path, "old")
        token.write_text("new\n")
        assert rest.get("/version") == {"ok": True}
    assert [seen.headers["authorization"] for seen in server.requests] == ["Bearer old", new]


def test_a_401_that_stays_is_reported_after_one_repetition(tmp_path: Path) -> None:
    with ScriptedServer(lambda x: x.json(status(401, "Unauthorized"), 401)) as server:
        with fails(UnauthorizedError, match="401"):
            client(server, tmp_path).create("/x", {"a": 1})
        assert len(server.requests) == 2


def test_a_token_file_that_vanished_is_an_error_of_the_api_not_a_crash(tmp_path: Path) -> None:
    with ScriptedServer(lambda x: x.json(status(401, "Unauthorized"), 401)) as server:
        rest, token = in_cluster(server, tmp_path, "old")
        token.unlink()
        with pytest.raises(UnauthorizedError):
            rest.get("/version")


def test_a_server_that_is_not_there_is_named(tmp_path: Path) -> None:
    with ScriptedServer(lambda x: x.json({})) as server:
        url = server.url
    with pytest.raises(ApiUnreachableError) as caught:
        client(server, tmp_path).get("/version")
    assert url in str(caught.value)
    assert "kubeconfig" in str(caught.value)


@pytest.mark.parametrize(
    "script",
    [
        lambda x: x.hang(),
        lambda x: x.raw(b"<html>gateway</html>"),
        lambda x: x.raw(b"[" * 100_000),
        lambda x: x.json([1]),
    ],
    ids=["silent", "not JSON", "nested too deeply", "not an object"],
)
def test_answers_that_cannot_be_read_are_no_answer(tmp_path: Path, script: Callable[[Exchange], None]) -> None:
    with ScriptedServer(script) as server, pytest.raises(ApiUnreachableError, match="GET /version"):
        client(server, tmp_path).get("/version")


def test_an_answer_larger_than_64_mib_is_refused(tmp_path: Path) -> None:
    """The node process has 256 MiB; the answer is refused before it is decoded, and is not read to its end."""
    sent = []

    def endless(x: Exchange) -> None:
        def chunks() -> Iterator[bytes]:
            yield b'{"a": "'
            for number in range(200):
                sent.append(number)
                yield b"x" * 2**20
            yield b'"}'

        x.stream(chunks())

    with ScriptedServer(endless) as server, pytest.raises(KubernetesApiError, match="larger than 64 MiB; refused"):
        client(server, tmp_path, timeouts=Timeouts()).get("/version")
    assert len(sent) < 200


def test_page_above_64_mib_is_requested_in_halves(tmp_path: Path) -> None:
    """50 claims of 1.4 MB are one tenant's business, and would end every list of claims."""
    limits = []

    def large(x: Exchange) -> None:
        limits.append(int(x.seen.query["limit"]))
        if limits[-1] > 200:
            x.stream([b'{"items": ["', *[b"x" * 2**20] * 65])
        else:
            x.json({"metadata": {"resourceVersion": "5"}, "items": [{"metadata": {"name": x.seen.query["limit"]}}]})

    with ScriptedServer(large) as server:
        listed = client(server, tmp_path, timeouts=Timeouts()).list("/api/v1/pods")
    assert limits == [500, 250, 125]
    assert (listed["metadata"]["resourceVersion"], len(listed["items"])) == ("5", 1)


def test_a_dripping_server_cannot_block_a_caller(tmp_path: Path) -> None:
    with ScriptedServer(lambda x: x.stream(drip())) as server:
        began = time.monotonic()
        with pytest.raises(ApiUnreachableError, match="did not end in time"):
            client(server, tmp_path).get("/version")
        assert time.monotonic() - began < 1.5


@pytest.mark.parametrize("failure", ["silent", "dripping", "silent in the middle", "broken, then silent"])
def test_a_callers_deadline_bounds_a_read_with_its_repeats(failure: str, tmp_path: Path) -> None:
    """The client's own limits are longer, and a repeat would begin them anew: the kubelet waits for neither."""

    def script(x: Exchange) -> None:
        if failure == "broken, then silent" and x.number == 1:
            x.drop()
        elif failure == "dripping":
            x.stream(drip())
        elif failure == "silent in the middle":
            x.stream([b"{"], end="hang")
        else:
            x.hang()

    with ScriptedServer(script) as server:
        rest = client(server, tmp_path, timeouts=Timeouts())
        began = time.monotonic()
        with pytest.raises(ApiUnreachableError) as caught:
            rest.get("/version", within_s=0.4)
        assert "timeout=" not in str(caught.value), "events are put together when their text is the same"
        assert time.monotonic() - began < 3.0, "the answer takes 5 s, and the client's own limits longer"


def test_a_read_without_time_left_is_not_sent(tmp_path: Path) -> None:
    with ScriptedServer(lambda x: x.json({})) as server:
        with pytest.raises(ApiUnreachableError, match="no time was left"):
            client(server, tmp_path).get("/version", within_s=0.0)
        assert server.requests == []
        assert client(server, tmp_path).get("/version", within_s=5.0) == {}


def test_a_short_deadline_is_not_kept_for_the_next_request(tmp_path: Path) -> None:
    def script(x: Exchange) -> None:
        if x.number == 2:
            time.sleep(0.2)
        x.json({})

    with ScriptedServer(script) as server:
        rest = client(server, tmp_path)
        assert rest.get("/version", within_s=0.1) == {}
        assert rest.get("/version") == {}


def test_a_read_is_repeated_on_a_connection_that_broke_and_a_write_is_not(tmp_path: Path) -> None:
    """A kept-alive connection may die just as it is used; a write may have happened all the same."""

    def script(x: Exchange) -> None:
        x.drop() if x.number in {1, 3} else x.json({"ok": True})

    with ScriptedServer(script) as server:
        rest = client(server, tmp_path)
        assert rest.get("/version") == {"ok": True}
        with pytest.raises(ApiUnreachableError):
            rest.create("/x", {})
        assert [seen.method for seen in server.requests] == ["GET", "GET", "POST"]


def test_a_repeat_does_not_use_another_connection_that_broke(tmp_path: Path) -> None:
    """A load balancer that was restarted has forgotten every connection, and says so only when one is used."""
    used: set[int] = set()

    def script(x: Exchange) -> None:
        port = x._handler.client_address[1]
        x.drop() if port in used else x.json({})
        used.add(port)

    with ScriptedServer(script) as server:
        rest = client(server, tmp_path)
        assert rest.get_all(["/a", "/b", "/c"]) == [{}, {}, {}]
        assert rest.get("/d") == {}


def test_connections_that_fell_silent_cost_one_wait_and_not_one_each(tmp_path: Path) -> None:
    used: set[int] = set()

    def script(x: Exchange) -> None:
        port = x._handler.client_address[1]
        x.hang() if port in used else x.json({})
        used.add(port)

    with ScriptedServer(script) as server:
        rest = client(server, tmp_path)
        assert rest.get_all(["/a", "/b", "/c"]) == [{}, {}, {}]
        began = time.monotonic()
        assert rest.get_all(["/a", "/b", "/c"]) == [{}, {}, {}]
        assert time.monotonic() - began < 2 * FAST.read_s
        used.update(range(2**16))
        with pytest.raises(ApiUnreachableError):
            rest.get("/d")
        used.clear()
        assert rest.get("/d") == {}


def test_requests_are_sent_before_their_answers_are_awaited(tmp_path: Path) -> None:
    """A prepare does other work while the API server reads its claim."""
    arrived = threading.Event()

    def script(x: Exchange) -> None:
        arrived.set()
        x.json({"path": x.seen.path})

    with ScriptedServer(script) as server:
        receive = client(server, tmp_path).send_all(["/a", "/b"])
        assert arrived.wait(5.0)
        assert receive() == [{"path": "/a"}, {"path": "/b"}]


def test_a_refusal_is_the_answer_and_is_not_asked_for_twice(tmp_path: Path) -> None:
    with ScriptedServer(lambda x: x.json({"reason": "NotFound"}, status=404)) as server:
        found = client(server, tmp_path).get_all(["/a", "/b"])
        assert all(isinstance(each, NotFoundError) for each in found)
        assert len(server.requests) == 2


def test_requests_sent_together_renew_the_credentials_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """An exec plugin takes seconds."""
    caplog.set_level("INFO")

    def script(x: Exchange) -> None:
        good = x.seen.headers["authorization"] == "Bearer new"
        x.json({}) if good else x.json(status(401, "Unauthorized"), 401)

    with ScriptedServer(script) as server:
        rest, token = in_cluster(server, tmp_path, "old")
        token.write_text("new\n")
        assert rest.get_all(["/a", "/b", "/c"]) == [{}, {}, {}]
    assert [seen.headers["authorization"] for seen in server.requests].count("Bearer new") == 3
    assert caplog.messages.count("credentials read again") == 1


def test_a_deadline_that_is_over_leaves_the_first_error(tmp_path: Path) -> None:
    with ScriptedServer(lambda x: x.hang()) as server:
        (found,) = client(server, tmp_path).get_all(["/a"], within_s=0.2)
        assert "the answer did not end in time" in str(found)


@pytest.mark.parametrize("reading", ["one", "several"])
def test_a_dripping_head_cannot_block_a_caller_either(reading: str, tmp_path: Path) -> None:
    """A proxy that sends interim answers for ever is alive all the time."""

    def script(x: Exchange) -> None:
        for part in drip(b"HTTP/1.1 100 Continue\r\n\r\n"):
            x._handler.wfile.write(part)
        x.json({})

    with ScriptedServer(script) as server:
        rest = client(server, tmp_path)
        began = time.monotonic()
        if reading == "one":
            with pytest.raises(ApiUnreachableError, match="did not end in time"):
                rest.get("/version")
        else:
            assert all(isinstance(found, ApiUnreachableError) for found in rest.get_all(["/a", "/b"]))
        assert time.monotonic() - began < 2.5


def test_lists_are_read_page_by_page(tmp_path: Path) -> None:
    def script(x: Exchange) -> None:
        if "continue" in x.seen.query:
            x.json({"metadata": {"resourceVersion": "7"}, "items": [{"n": 2}]})
        else:
            x.json({"metadata": {"resourceVersion": "7", "continue": "more"}, "items": [{"n": 1}]})

    with ScriptedServer(script) as server:
        answer = client(server, tmp_path).list("/x", {"fieldSelector": "a=b"})
    assert answer["items"] == [{"n": 1}, {"n": 2}]
    assert [seen.query["fieldSelector"] for seen in server.requests] == ["a=b", "a=b"]


def test_a_null_list_is_an_empty_one(tmp_path: Path) -> None:
    """Go writes a list without items as null."""
    with ScriptedServer(lambda x: x.json({"metadata": {"resourceVersion": "7"}, "items": None})) as server:
        assert client(server, tmp_path).list("/x")["items"] == []


def test_deletes_carry_their_preconditions_and_dry_runs_say_so(tmp_path: Path) -> None:
    with ScriptedServer(lambda x: x.json({})) as server:
        rest = client(server, tmp_path)
        rest.delete("/x/a", uid="u", resource_version="5")
        rest.create("/x", {}, dry_run=True)
    assert server.requests[0].body["preconditions"] == {"uid": "u", "resourceVersion": "5"}
    assert server.requests[1].query == {"dryRun": "All"}
