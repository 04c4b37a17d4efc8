"""A conversation with an API server: requests from a file, and replies in a comparable form.

The same conversation is held with a real kube-apiserver, which records its replies (Kubernetes 1.36.2 with default
feature gates and without controllers), and with the embedded one (``test_server.py``). Values that differ from run to
run (UIDs, revisions, times, random suffixes, ages) are replaced by a marker. To record again:
``KUBECONFIG=... python -m tests.contract.apiserver.conversation [conversation ...]``. Use a cluster without valuable
data, with a token or no client certificate in its kubeconfig; the recorded files have no host names.
"""

import http.client
import json
import os
import re
import ssl
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

HERE = Path(__file__).parent
STEPS = HERE / "steps"
RECORDED = HERE / "recorded"

_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")
_GENERATED = re.compile(r"\b(gen-[a-z]*-?)[bcdfghjklmnpqrstvwxz2456789]{5}\b")
_REVISIONS = re.compile(
    r"(ResourceVersion in (?:precondition|object meta): |[Tt]oo (?:large|old) resource version: |current: |"
    r"the ResourceVersion in (?:the precondition|record) \()\d+"
)
# The real server prints its internal Go structs here, with fields that the wire does not have.
_GO_VALUE = re.compile(r"Invalid value: \{.*\}: (field is immutable|exactly one value|must specify one)")
_AGE = re.compile(r"\d+[smhd]\d*[smhd]?")
_VOLATILE = {"resourceVersion", "continue"}
_DROPPED = {"managedFields", "selfLink"}


@dataclass(frozen=True)
class Server:
    host: str
    port: int
    token: str


@dataclass(frozen=True)
class Answer:
    """A status code, warnings and a body: a value, or a list of them for watches."""

    code: int
    body: Any
    warnings: list[str]


def load(name: str) -> list[dict[str, Any]]:
    steps: list[dict[str, Any]] = yaml.safe_load((STEPS / f"{name}.yaml").read_text(encoding="utf-8"))
    return steps


def ask(server: Server, step: dict[str, Any], known: dict[str, str]) -> Answer:
    """Send one step; ``known`` are values captured from earlier replies."""
    connection = http.client.HTTPSConnection(server.host, server.port, timeout=20, context=_unverified())
    headers = {"Authorization": f"Bearer {server.token}", "Accept": "application/json", **step.get("headers", {})}
    body = step.get("body")
    if body is not None and not isinstance(body, str):
        body = json.dumps(body)
    if body is not None:
        headers.setdefault("Content-Type", "application/json")
    connection.request(step.get("method", "GET"), fill(step["path"], known), fill(body, known), headers)
    response = connection.getresponse()
    text = response.read().decode()
    warnings = [value for key, value in response.getheaders() if key.lower() == "warning"]
    connection.close()
    if "watch=" in step["path"] and response.status == 200:
        return Answer(response.status, [json.loads(line) for line in text.splitlines()], warnings)
    try:
        return Answer(response.status, json.loads(text), warnings)
    except ValueError:
        return Answer(response.status, text, warnings)


@cache
def _unverified() -> ssl.SSLContext:
    """Recorded servers have no certificate that could be verified; the tests of kubectl verify the embedded one."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def fill(text: str | None, known: dict[str, str]) -> Any:
    if text is None:
        return None
    for name, value in known.items():
        text = text.replace("${" + name + "}", value)
    return text


def capture(step: dict[str, Any], answer: Answer, known: dict[str, str]) -> None:
    for name, path in step.get("capture", {}).items():
        value = answer.body
        for part in path.split("."):
            value = value[int(part)] if isinstance(value, list) else value[part]
        known[name] = str(value)


def comparable(step: dict[str, Any], answer: Answer) -> dict[str, Any]:
    """The parts in which two servers must agree: code, warnings and body, without what changes from run to run."""
    body = _stable(answer.body, "")
    if only := step.get("only"):
        body = {path: _at(body, path) for path in only}
    for path in step.get("ignore", ()):
        _remove(body, path.split("."))
    return {"code": answer.code, "body": body} | ({"warnings": answer.warnings} if answer.warnings else {})


def _at(value: Any, path: str) -> Any:
    for part in path.split("."):
        if isinstance(value, list):
            value = value[int(part)] if int(part) < len(value) else None
        elif isinstance(value, dict):
            value = value.get(part)
    return value


def _stable(value: Any, key: str) -> Any:
    if isinstance(value, dict):
        if value.get("kind") == "Table":
            value = _plain_table(value)
        return {name: _stable(item, name) for name, item in sorted(value.items()) if name not in _DROPPED}
    if isinstance(value, list):
        return [_stable(item, key) for item in value]
    if isinstance(value, str):
        return _stable_text(value, key)
    return value


def _stable_text(text: str, key: str) -> str:
    if key in _VOLATILE and text not in {"", "0"}:
        return "<volatile>"
    text = _GO_VALUE.sub(r"Invalid value: <object>: \1", text)
    text = _REVISIONS.sub(r"\1<revision>", text)
    text = _GENERATED.sub(r"\1<random>", text)
    return _TIME.sub("<time>", _UUID.sub("<uuid>", text))


def _plain_table(table: dict[str, Any]) -> dict[str, Any]:
    columns = table.get("columnDefinitions") or []
    kept = [{key: value for key, value in column.items() if key != "description"} for column in columns]
    rows = [
        row | {"cells": ["<age>" if _AGE.fullmatch(str(cell)) else cell for cell in row["cells"]]}
        for row in table.get("rows") or []
    ]
    return table | {"columnDefinitions": kept, "rows": rows}


def _remove(value: Any, path: list[str]) -> None:
    for part in path[:-1]:
        if part == "*":
            for item in value if isinstance(value, list) else list(value.values()):
                _remove(item, path[path.index(part) + 1 :])
            return
        value = _at(value, part)
    if isinstance(value, dict):
        value.pop(path[-1], None)


def hold(server: Server, name: str) -> dict[str, dict[str, Any]]:
    known: dict[str, str] = {}
    answers: dict[str, dict[str, Any]] = {}
    for step in load(name):
        answer = ask(server, step, known)
        capture(step, answer, known)
        answers[step["name"]] = comparable(step, answer)
    return answers


def record() -> None:
    config = yaml.safe_load(Path(os.environ["KUBECONFIG"]).read_text(encoding="utf-8"))
    url = urlsplit(config["clusters"][0]["cluster"]["server"])
    server = Server(url.hostname or "", url.port or 443, config["users"][0]["user"]["token"])
    for name in sys.argv[1:] or sorted(path.stem for path in STEPS.glob("*.yaml")):
        answers = hold(server, name)
        text = json.dumps(answers, indent=1, ensure_ascii=False, sort_keys=False)
        (RECORDED / f"{name}.json").write_text(text + "\n", encoding="utf-8")
        sys.stderr.write(f"{name}: {len(answers)} answers\n")


if __name__ == "__main__":
    record()
