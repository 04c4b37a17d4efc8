"""Wrong arguments of every command end with status 2 and a message that names them."""

from pathlib import Path

import pytest

from dra_driver.kube.state_file import dump
from dra_driver.kubectl.commands import kubectl
from tests.unit.kubectl.explain.clusters import cluster, pod

PROMETHEUS = "usage --prometheus http://x"
CASES = {
    "capacity --cluster-state STATE --node nope": "--node 'nope': none of the 2 nodes has this name",
    "capacity --cluster-state STATE --share lots": "--share: 'lots' is not a quantity",
    "capacity --cluster-state STATE --share=-1Gi": "expected an amount greater than zero",
    "capacity --cluster-state STATE --feature-gates X": "expected NAME=true",
    "doctor --snapshot STATE train": "expected node/NAME, pod/NAME or claim/NAME",
    "doctor --snapshot STATE service/x": "expected node/NAME, pod/NAME or claim/NAME",
    "doctor --snapshot STATE node/a/b": "expected node/NAME",
    "doctor --snapshot STATE --timeout 0": "expected 1 to 600 seconds",
    "doctor --snapshot STATE --timeout nan": "expected 1 to 600 seconds",
    "doctor --snapshot STATE node/none": "there is no node none",
    "drain gpu-a --force": "--force: only with --evict",
    "explain --cluster-state STATE": "expected either pod/NAME or claim/NAME, or manifests with -f",
    "explain --cluster-state STATE deployment/x": "expected pod/NAME or claim/NAME",
    "explain --cluster-state STATE pod/missing": "no pod missing in namespace default",
    "explain --cluster-state STATE claim/missing -n team": "no ResourceClaim missing in namespace team",
    "explain --cluster-state STATE train --node nowhere": "no node nowhere; known nodes: a, b",
    "explain --cluster-state STATE train --feature-gates X": "expected NAME=true or NAME=false",
    "explain --cluster-state STATE -f /nowhere.yaml": "cannot read /nowhere.yaml",
    "idle --idle-for soon": "--idle-for",
    "migrate": "nothing to translate",
    "migrate missing.yaml": "no such file or folder",
    "migrate - --gpu-memory lots": "--gpu-memory",
    "migrate - --gpu-memory 1": "expected 256Mi to 4Ti",
    "policy explain gpu-0": "expected NODE/GPU",
    "policy explain a/b/c": "expected NODE/GPU",
    "policy explain a/gpu-0 --gpus 1xl4-24gb": "belong together",
    "ui --port 65536": "--port 65536",
    "ui --cluster-state x.json --prometheus http://localhost:9090": "leave one of both out",
    "ui --prometheus localhost:9090": "expected an address",
    "usage --by colour": "--by",
    "usage --window 1h": "--window",
    "usage --prometheus ftp://x": "--prometheus",
    "usage --prometheus http://user:secret@x": "--prometheus",
    f"{PROMETHEUS} --window 1y": "--window",
    f"{PROMETHEUS} --window 1s": "--window",
    f"{PROMETHEUS} --prometheus-token-file none": "--prometheus-token-file",
}


@pytest.mark.parametrize("line", CASES)
def test_wrong_arguments_are_named(line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dump(cluster(pods=[pod()]), state := tmp_path / "state.json")
    assert kubectl.main([str(state) if word == "STATE" else word for word in line.split()]) == 2
    assert CASES[line] in capsys.readouterr().err
