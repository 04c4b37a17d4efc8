"""Support bundles: contents, removed secrets, and validation of bundles that are read back."""

import gzip
import io
import json
import re
import stat
import tarfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from dra_driver.core.document import to_wire
from dra_driver.core.errors import ConfigurationError
from dra_driver.core.telemetry.logs import redact
from dra_driver.diagnose.doctor import bundle
from dra_driver.diagnose.doctor.bundle import read_logs
from dra_driver.diagnose.doctor.cluster import DoctorScope, diagnose
from dra_driver.diagnose.doctor.reading import read_facts
from dra_driver.diagnose.doctor.reduce import redacted
from dra_driver.diagnose.doctor.report import document_of, render
from tests.doctor_faults.cluster import SERVER, Cluster, named, template, unready, workload
from tests.fakes.dra_objects import DRIVER, Obj, allocated, claim
from tests.harness.raising import fails

SECRET = "hunter2-hunter2"
JWT = "eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJub2RlIn0.c2lnbmF0dXJl"


def written(cluster: Cluster, path: Path) -> bundle.SupportBundle:
    facts = read_facts(cluster, server=SERVER)
    report = diagnose(facts, DoctorScope(), clock=time.monotonic)
    logs, _ = read_logs(cluster, facts, within_s=1.0)
    found = bundle.SupportBundle(
        facts=facts,
        created_at="2026-11-22T10:00:00Z",
        program_version="0.1.0",
        report=to_wire(document_of(report)),
        report_text=render(report),
        logs=logs,
    )
    bundle.write(found, path)
    return found


def contents(path: Path) -> str:
    with tarfile.open(path) as tar:
        return "".join(file.read().decode() for each in tar if (file := tar.extractfile(each)) is not None)


def packed(path: Path, **files: Any) -> Path:
    """A bundle with these files and nothing else."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as tar:
        for name, document in files.items():
            text = document if isinstance(document, bytes) else json.dumps(document).encode()
            member = tarfile.TarInfo(f"../../{name}.json")
            member.size = len(text)
            tar.addfile(member, io.BytesIO(text))
    path.write_bytes(gzip.compress(data.getvalue()))
    return path


def manifest(**changed: Any) -> Obj:
    return {"kind": "SupportBundle", "schemaVersion": 1, "programVersion": "0.1.0", **changed}


def test_what_is_read_back_gives_the_same_report(tmp_path: Path) -> None:
    cluster = Cluster()
    cluster.refused = {"list daemonsets.apps in all namespaces", "list nodes"}
    cluster.gpu_api = ["gpunodes"]
    before = written(cluster, tmp_path / "b.tar.gz")
    facts = bundle.read(tmp_path / "b.tar.gz")
    again = diagnose(facts, DoctorScope(), clock=time.monotonic)
    assert to_wire(document_of(again))["items"] == before.report["items"]
    assert facts.state().server_version == "v1.36.2"
    assert facts.state().gpu_nodes == facts.items("gpu-nodes")
    assert bundle.is_bundle(tmp_path / "b.tar.gz")
    assert stat.S_IMODE((tmp_path / "b.tar.gz").stat().st_mode) == 0o600


def test_no_secret_gets_into_it(tmp_path: Path) -> None:
    """Neither environment, arguments, annotations nor volumes; tokens in logs and messages are removed."""
    cluster = Cluster()
    pod = workload()
    pod["metadata"]["annotations"] = {"note": SECRET}
    pod["spec"]["containers"][0].update(
        env=[{"name": "PASSWORD", "value": SECRET}], args=["--key", SECRET], command=[SECRET]
    )
    pod["spec"]["volumes"] = [{"name": "v", "csi": {"volumeAttributes": {"key": SECRET}}}]
    cluster.pods.append(pod)
    container = cluster.daemonsets[0]["spec"]["template"]["spec"]["containers"][0]
    container["env"].append({"name": "PROXY_PASSWORD", "value": SECRET})
    cluster.daemonsets[0]["metadata"]["annotations"] = {"applied": SECRET}
    cluster.gpu_policies = [named("p", spec={})]
    cluster.gpu_policies[0]["metadata"]["annotations"] = {"applied": SECRET}
    unready(
        cluster.pods[0],
        restartCount=1,
        state={"waiting": {"reason": "CrashLoopBackOff", "message": f"token={SECRET}"}},
        lastState={"terminated": {"exitCode": 1, "message": f"Authorization: Bearer {JWT}"}},
    )
    cluster.logs[cluster.pods[0]["metadata"]["name"]] = f"GET https://u:{SECRET}@proxy: Bearer {JWT}\n"
    found = written(cluster, tmp_path / "b.tar.gz")
    assert any("gpu-a" in name for name in found.logs)
    text = contents(tmp_path / "b.tar.gz")
    assert SECRET not in text
    assert JWT not in text


def test_parameters_of_other_drivers_do_not_get_into_it(tmp_path: Path) -> None:
    """A network driver's parameters may hold a token under any key; those of this driver help who reads the bundle."""
    cluster = Cluster()
    config = [
        {"opaque": {"driver": "net.example.com", "parameters": {"token": SECRET}}},
        {"opaque": {"driver": DRIVER, "parameters": {"kind": "GpuConfig"}}},
    ]
    card = allocated(claim("card", namespace="team-a", config=config), "gpu-0", node_name="gpu-a")
    card["status"]["allocation"]["devices"]["config"] = config
    applied = json.dumps({"spec": {"devices": {"config": config}}})
    card["metadata"]["annotations"] = {"kubectl.kubernetes.io/last-applied-configuration": applied}
    card["status"]["devices"] = [{"driver": "net.example.com", "device": "eth0", "data": {"psk": SECRET}}]
    cluster.claims.append(card)
    cards = template("cards")
    cards["spec"]["spec"]["devices"]["config"] = config
    cluster.templates.append(cards)
    cluster.classes.append(named("nets", spec={"config": config}))
    written(cluster, tmp_path / "b.tar.gz")
    text = contents(tmp_path / "b.tar.gz")
    assert SECRET not in text
    assert text.count("GpuConfig") == 5
    assert "net.example.com" in text


@pytest.mark.parametrize(
    ("files", "reason", "words"),
    [
        ({"manifest": manifest(schemaVersion=2, programVersion="0.9")}, "", "2.*1.*0[.]9"),
        ({"manifest": manifest(kind="Other")}, "", "SupportBundle"),
        ({"manifest": manifest()}, "MemberMissing", "state.json, facts.json"),
        ({"manifest": b"{"}, "NotJson", "manifest.json"),
        ({"manifest": b"[" * 100_000}, "NotJson", "manifest.json"),
        ({"manifest": manifest(), "state": {"kind": "List"}, "facts": {}}, "NoAnswers", "facts.json"),
        (
            {"manifest": manifest(), "state": {"kind": "List"}, "facts": {"answers": {"gates": 1}}},
            "NotAnAnswer",
            "gates",
        ),
        ({"manifest": manifest(), "state": {}, "facts": {"answers": {}}}, "", "kind"),
    ],
)
def test_bundle_of_another_shape_is_refused(files: dict[str, Any], reason: str, words: str, tmp_path: Path) -> None:
    with fails(ConfigurationError, reason) as caught:
        bundle.read(packed(tmp_path / "b.tar.gz", **files))
    assert re.search(words, str(caught.value))


@pytest.mark.parametrize(
    "data",
    [b"\x1f\x8b", b"\x1f\x8b" + b"x" * 100, gzip.compress(b"no tar" * 200, mtime=0)],
    ids=["two bytes", "no gzip", "no archive"],
)
def test_a_file_that_is_no_archive_is_refused(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "b.tar.gz").write_bytes(data)
    with pytest.raises(ConfigurationError, match=r"b\.tar\.gz"):
        bundle.read(tmp_path / "b.tar.gz")


def test_a_truncated_bundle_is_refused(tmp_path: Path) -> None:
    written(Cluster(), tmp_path / "b.tar.gz")
    data = (tmp_path / "b.tar.gz").read_bytes()
    (tmp_path / "b.tar.gz").write_bytes(data[: len(data) // 2])
    with pytest.raises(ConfigurationError, match=r"b\.tar\.gz"):
        bundle.read(tmp_path / "b.tar.gz")


def test_nothing_outside_is_written_by_reading(tmp_path: Path) -> None:
    """Members with names such as ``../../etc/passwd`` are read in memory, if they are known at all."""
    with pytest.raises(ConfigurationError):
        bundle.read(packed(tmp_path / "b.tar.gz", manifest=manifest(), evil={}))
    assert [each.name for each in tmp_path.iterdir()] == ["b.tar.gz"]


@pytest.mark.parametrize(
    ("name", "kind", "size", "found"),
    [
        ("x", tarfile.XHDTYPE, 3 << 30, "3221225472 bytes"),
        ("logs/x", tarfile.REGTYPE, 4 << 30, "3072 MiB"),
    ],
)
def test_members_of_gigabytes_are_not_read(tmp_path: Path, name: str, kind: bytes, size: int, found: str) -> None:
    """`tarfile` reads a header of any length into memory, and decompresses skipped members."""
    member = tarfile.TarInfo(name)
    member.type, member.size = kind, size
    path = tmp_path / "b.tar.gz"
    path.write_bytes(gzip.compress(member.tobuf(format=tarfile.USTAR_FORMAT) + bytes(10_240)))
    with fails(ConfigurationError, "NotABundle") as caught:
        bundle.read(path)
    assert found in str(caught.value)


@pytest.mark.parametrize(
    "secret",
    [
        "Authorization: Bearer abcdefgh12345678",
        '{"token": "abcdefgh12345678"}',
        "password=abcdefgh12345678",
        "AWS_SECRET_ACCESS_KEY=abcdefgh12345678",
        "api-key: abcdefgh12345678",
        "https://user:abcdefgh12345678@registry.example/v2",
        "-----BEGIN RSA PRIVATE KEY-----\nabcdefgh12345678\n-----END RSA PRIVATE KEY-----",
        "-----BEGIN PRIVATE KEY-----\nabcdefgh12345678",
        "eyJhbGciOiJSUzI1NiJ9.eyJhbGciOiJSUzI1NiJ9.abcdefgh12345678",
        "x-eyJhbGciOiJSUzI1NiJ9.eyJhbGciOiJSUzI1NiJ9.abcdefgh12345678",
        "ghp_abcdefgh12345678",
        "hf_abcdefgh12345678",
    ],
)
def test_secrets_go_and_the_rest_stays(secret: str) -> None:
    text = redacted(f"before {secret} \nafter", 1000)
    assert "abcdefgh12345678" not in text
    assert text.startswith("before ")
    assert text.endswith("after") or "BEGIN" in secret


@pytest.mark.parametrize("clean", [partial(redacted, longest=1 << 20), redact], ids=["bundle", "logs"])
@pytest.mark.parametrize(
    "part",
    [
        "eyJ-",
        "eyJabcdefgh.",
        "eyJabcdefgh-",
        "bearer ",
        "bearer\t\t\t\t",
        "token=",
        'token="',
        "a://b:",
        "-----BEGIN ",
        "hf_-",
    ],
)
def test_redaction_takes_linear_time(clean: Callable[[str], str], part: str) -> None:
    """A tenant writes lines that end in logs and bundles; a quadratic search takes a minute for 64 KiB."""

    def cpu_s(size: int) -> float:
        text = part * (size // len(part))
        return min(_cpu_s(clean, text) for _ in range(3))

    assert cpu_s(64 << 10) < 10 * cpu_s(16 << 10) + 0.02


def _cpu_s(clean: Callable[[str], str], text: str) -> float:
    begun = time.thread_time()
    clean(text)
    return time.thread_time() - begun


def test_long_lines_are_cut() -> None:
    assert len(redacted("x" * 100_000 + "\nend", 1 << 20)) < 20_000


@pytest.mark.parametrize("text", ["claim team-a/train prepared", "GPU-5e1b8f0a-3c44", "no token was mounted", "a: b"])
def test_what_is_no_secret_stays(text: str) -> None:
    assert redacted(text, 1000) == text


def test_long_texts_are_cut() -> None:
    assert len(redacted("x" * 10_000, 100)) == 100
