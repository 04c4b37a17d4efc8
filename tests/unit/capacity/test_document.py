"""What docs/capacity.md shows is what the command prints."""

import re
from pathlib import Path

import pytest

from dra_driver.cli.kubectl import main
from dra_driver.kube.state_file import dump
from tests.unit.capacity.helpers import cluster, holding, mig

TEXT = (Path(__file__).parents[3] / "docs/capacity.md").read_text()


def blocks(command: str) -> list[str]:
    """The output under a command line of the page, without its indentation."""
    found = re.findall(rf"^    \$ {re.escape(command)}\n((?:    .*\n|\n)*)", TEXT, re.MULTILINE)
    return ["\n".join(line.removeprefix("    ") for line in block.splitlines()).strip() for block in found]


def test_mig_example_is_real_output(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two H100 in all their forms: one small device in each half of the first, the second one empty but for a half."""
    claims = [
        holding("a", "gpu-c", "gpu-0-mig-1g10gb-19-1"),
        holding("b", "gpu-c", "gpu-0-mig-1g10gb-19-5"),
        holding("c", "gpu-c", "gpu-1-mig-4g40gb-5-0"),
        holding("d", "gpu-c", "gpu-1-mig-1g20gb-15-4"),
    ]
    path = tmp_path / "mig.json"
    dump(cluster(mig("gpu-c", 2), claims), path)
    assert main(["capacity", "--cluster-state", str(path)]) == 0
    assert blocks("kubectl dra capacity --cluster-state mig.json") == [capsys.readouterr().out.strip()]


def test_every_word_of_the_tables_is_explained() -> None:
    for word in ("free", "used", "fragmented", "unavailable", "fits", "by sum", "stranded", "in use"):
        assert f"| {word} |" in TEXT
