"""The kubelet's calls, timed."""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc

from tests.fakes.kubelet import DraClient, dial, v1

CALL_TIMEOUT_S = 45.0


class TimedKubelet:
    """Each call has any number of claims, and returns its seconds. An error of a claim ends the program."""

    def __init__(self, channel: grpc.Channel) -> None:
        self._client = DraClient(channel)

    def prepare(self, *claims: Mapping[str, str]) -> float:
        return _timed(self._client.prepare_method, v1.NodePrepareResourcesRequest(claims=_messages(claims)))

    def unprepare(self, *claims: Mapping[str, str]) -> float:
        return _timed(self._client.unprepare_method, v1.NodeUnprepareResourcesRequest(claims=_messages(claims)))


def _messages(claims: "tuple[Mapping[str, str], ...]") -> list[Any]:
    return [v1.Claim(**{name: claim[name] for name in ("namespace", "name", "uid")}) for claim in claims]


def _timed(call: Any, request: Any) -> float:
    begin = time.perf_counter()
    response = call(request, timeout=CALL_TIMEOUT_S)
    elapsed = time.perf_counter() - begin
    assert len(response.claims) == len(request.claims)
    if errors := [answer.error for answer in response.claims.values() if answer.error]:
        raise SystemExit(f"the driver answered: {errors[0]}")
    return elapsed


@contextmanager
def timed_kubelet(socket: Path) -> Iterator[TimedKubelet]:
    """Connected to a node process."""
    with dial(socket) as channel:
        grpc.channel_ready_future(channel).result(timeout=20)
        yield TimedKubelet(channel)
