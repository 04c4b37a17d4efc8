"""Heads of requests."""

from http import HTTPStatus

import pytest

from dra_driver.webhook.http_message import MAX_BODY, parse, render


def head(first: str, *lines: str) -> bytes:
    return "\r\n".join([first, *lines, "", ""]).encode()


def test_a_review_is_taken() -> None:
    found = parse(head("POST /validate?timeout=3s HTTP/1.1", "Host: x", "Content-Length: 12"))
    assert (found.method, found.path, found.length, found.keeps, found.refused) == ("POST", "/validate", 12, True, None)


def test_a_probe_is_taken() -> None:
    assert parse(head("GET /healthz HTTP/1.1", "Host: x", "Connection: close")).keeps is False


@pytest.mark.parametrize(
    ("first", "lines", "status"),
    [
        ("POST / HTTP/1.1", [], HTTPStatus.NOT_FOUND),
        ("GET /validate HTTP/1.1", [], HTTPStatus.METHOD_NOT_ALLOWED),
        ("POST /validate HTTP/1.1", [], HTTPStatus.LENGTH_REQUIRED),
        ("POST /validate HTTP/1.1", ["Transfer-Encoding: chunked"], HTTPStatus.LENGTH_REQUIRED),
        ("POST /validate HTTP/1.1", ["Transfer-Encoding: chunked", "Content-Length: 3"], HTTPStatus.LENGTH_REQUIRED),
        ("POST /validate HTTP/1.1", [f"Content-Length: {MAX_BODY + 1}"], HTTPStatus.REQUEST_ENTITY_TOO_LARGE),
        ("POST /validate HTTP/1.1", [f"Content-Length: {'9' * 5000}"], HTTPStatus.REQUEST_ENTITY_TOO_LARGE),
        ("POST /validate HTTP/1.1", ["Content-Length: -1"], HTTPStatus.BAD_REQUEST),
        ("POST /validate HTTP/1.1", ["Content-Length: \u00b2"], HTTPStatus.BAD_REQUEST),
        ("POST /validate HTTP/1.1", ["Content-Length: 1", "Content-Length: 2"], HTTPStatus.BAD_REQUEST),
        ("POST /validate HTTP/1.1", ["Content-Length : 1"], HTTPStatus.BAD_REQUEST),
        ("POST /validate HTTP/1.1", ["no colon"], HTTPStatus.BAD_REQUEST),
        ("POST /validate HTTP/2", ["Content-Length: 1"], HTTPStatus.BAD_REQUEST),
        ("hello", [], HTTPStatus.BAD_REQUEST),
        ("", [], HTTPStatus.BAD_REQUEST),
    ],
)
def test_everything_else_is_refused(first: str, lines: list[str], status: HTTPStatus) -> None:
    assert parse(head(first, *lines)).refused is status


def test_an_answer_says_its_length_and_whether_more_may_come() -> None:
    said = render(HTTPStatus.OK, b"{}", keeps=True, json=True)
    assert said.startswith(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n")
    assert said.endswith(b"Connection: keep-alive\r\n\r\n{}")
    assert b"Connection: close" in render(HTTPStatus.NOT_FOUND, b"", keeps=False)
