"""Every command of `kubectl dra` on one cluster of mixed health: its options, exit status, JSON and 80 columns."""

import argparse
import contextlib
import io
import json
import re
import shutil
import time
from os import terminal_size
from pathlib import Path

import pytest
from msgspec.structs import fields

from dra_driver.core.command_line.main import parser_of
from dra_driver.core.command_line.table import display_width
from dra_driver.core.document import API_VERSION
from dra_driver.hardware.gpu.simulated.faults import ANNOTATION
from dra_driver.kubectl.commands import kubectl
from dra_driver.sim.apiserver.kinds import GPU_NODES, NODES, PODS
from dra_driver.sim.cluster import Cluster
from scripts.json_docs import documents
from tests.scenario.conftest import TIMEOUT_S, devices
from tests.scenario.test_usage import EXAMPLE, NODE, POLICY, claims

CLUSTER = {"nodes": {NODE: "2xa100-sxm4-40gb"}, "policies": [POLICY], "usage": True}
EXIT = {
    "devices": 0,
    "claims": 0,
    "capacity": 0,
    "topology": 0,
    "usage": 0,
    "usage --by namespace": 0,
    "top": 0,
    "top node": 0,
    "idle": 0,
    "quota": 0,
    "classes list": 0,
    "kueue config": 0,
    "kueue queues -n default": 0,
    "policy explain gpu-a/gpu-0": 0,
    "explain": 1,
    "explain pod waits": 1,
    "doctor": 1,
    "lint --cluster": 0,
    "drain gpu-a --dry-run": 0,
    "undrain gpu-a --dry-run": 0,
    "gpu reset gpu-a/gpu-0 --dry-run": 0,
    "node-template 2xa100-sxm4-40gb": 0,
    "version": 0,
}
"""Each command, and its exit status on this cluster."""
ELSEWHERE = {"ui", "smoke", "hardware-check", "snapshot", "support-bundle", "migrate"}
"""Commands that start a server or pods, or write a file."""


@pytest.fixture(scope="module")
def mixed(cluster: Cluster) -> Cluster:
    """Three pods with use on one GPU, a lost GPU, and a pod that waits."""
    cluster.apply(EXAMPLE, "default")
    waits = {"containers": [{"name": "main", "image": "i", "resources": {"limits": {"nvidia.com/gpu": "9"}}}]}
    cluster.store.create(PODS, {"metadata": {"name": "waits"}, "spec": waits}, namespace="default")
    cluster.store.create(PODS, {"metadata": {"name": "waits-" + "n" * 240}, "spec": waits}, namespace="default")
    node = cluster.store.get(NODES, NODE)
    node["metadata"].setdefault("annotations", {})[ANNOTATION] = "gpu-1 xid=79"
    cluster.store.update(NODES, node)

    def is_mixed() -> str | None:
        used = len(claims(exporter)) if (exporter := cluster.nodes[NODE].exporter) else 0
        tainted = [device for device in devices(cluster, NODE) if device.get("taints")]
        reported = cluster.store.list(GPU_NODES).items
        if used == 3 and tainted and reported:
            return None
        return f"{used} claims in use, {len(tainted)} devices with taints, {len(reported)} GpuNodes"

    cluster.wait(is_mixed, TIMEOUT_S, "three claims in use, a lost GPU and its GpuNode")
    return cluster


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


def run(cluster: Cluster, line: str) -> tuple[int, str, str]:
    """Return the exit status, the output on a terminal of 80 columns, and standard error."""
    shown, said = Terminal(), io.StringIO()
    name = line.partition(" ")[0]
    source = [] if name in ("version", "node-template") else ["--kubeconfig", str(cluster.kubeconfig)]
    with contextlib.redirect_stdout(shown), contextlib.redirect_stderr(said):
        try:
            status = kubectl.main([*line.split(), *source])
        except SystemExit as ended:
            status = int(str(ended.code))
    return status, re.sub(r"\x1b\[[0-9;]*m", "", shown.getvalue()), said.getvalue()


def options_of(line: str) -> set[str]:
    """Return the options of a command that every list should have, and ``-o FORM`` for each of its forms."""
    name = line.partition(" ")[0]
    parser, _ = parser_of("kubectl dra", "", kubectl.SUBCOMMANDS, {name})
    for word in line.split():
        commands = [each for each in parser._actions if isinstance(each, argparse._SubParsersAction)]
        parser = commands[0].choices[word] if commands and word in commands[0].choices else parser
    known = parser._option_string_actions
    forms = [f"-o {form}" for form in known["-o"].choices or ()] if "-o" in known else []
    return {*forms, *(option for option in ("-A", "-n", "-l", "-w") if option in known)}


@pytest.fixture(autouse=True)
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "get_terminal_size", lambda *_: terminal_size((80, 24)))


def test_every_command_is_here() -> None:
    assert {line.partition(" ")[0] for line in EXIT} | ELSEWHERE == set(kubectl.SUBCOMMANDS)


@pytest.mark.parametrize("line", EXIT)
def test_a_command(line: str, mixed: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    options = options_of(line) - ({"-A", "-l"} if line == "explain pod waits" else set())
    for option in ["", *sorted(options)]:
        asked = {"-n": "-n default", "-l": "-l no=such"}.get(option, option)
        if option == "-w":
            monkeypatch.setattr(time, "sleep", interrupt)
        status, shown, said = run(mixed, f"{line} {asked}")
        assert "Traceback" not in said, said
        assert status == (130 if option == "-w" else status if option == "-l" else EXIT[line]), (asked, shown, said)
        if option in ("-o json", "-o yaml", "-o sarif", "-o github", "-o wide", "-o name", "-o csv"):
            if option == "-o json" and options & {"-o table", "-o text"}:
                check_json(shown)
            continue
        if "-o yaml" in options and not options & {"-o table", "-o text"}:
            continue  # manifests
        widest = max(shown.splitlines() or [""], key=display_width)
        assert display_width(widest) <= 80, (asked, widest)


def test_topology_shows_the_taint_of_a_lost_gpu(mixed: Cluster) -> None:
    assert re.search(r"gpu-1 .* free, tainted", run(mixed, "topology")[1])


def test_node_and_gpu_can_be_one_word(mixed: Cluster) -> None:
    for word, count in (("gpu-a/gpu-1", "1 GPU;"), ("node/gpu-a", "2 GPUs;")):
        assert f"would drain {count}" in run(mixed, f"drain {word} --dry-run")[1]
        assert run(mixed, f"undrain {word} --dry-run")[0] == 0


def interrupt(_: float) -> None:
    raise KeyboardInterrupt


def check_json(shown: str) -> None:
    document = json.loads(shown)
    assert document["apiVersion"] == API_VERSION
    kinds = {str(kind.__struct_config__.tag): kind for kind in documents()}
    assert set(document) - {"kind"} == {each.encode_name for each in fields(kinds[document["kind"]])}


@pytest.mark.parametrize("line", ["snapshot {}/s.json", "support-bundle {}/b.tar.gz"])
def test_a_file_is_written_once(line: str, mixed: Cluster, tmp_path: Path) -> None:
    assert run(mixed, line.format(tmp_path))[0] == 0
    assert [each.stat().st_mode & 0o777 for each in tmp_path.iterdir()] == [0o600]
