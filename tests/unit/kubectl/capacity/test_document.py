"""docs/capacity.md shows exactly what the command prints."""

import re
from pathlib import Path

import pytest

from dra_driver.core.model.terms import SharingTerms, Strategy
from dra_driver.kube.state import ClusterState
from dra_driver.kube.state_file import dump
from dra_driver.kubectl.commands.kubectl import main
from tests.fakes.published import h100, having, share

TEXT = (Path(__file__).parents[4] / "docs/capacity.md").read_text()


def blocks(command: str) -> list[str]:
    """Returns the output below a command line of the page, without indentation."""
    found = re.findall(rf"^    \$ {re.escape(command)}\n((?:    .*\n|\n)*)", TEXT, re.MULTILINE)
    return ["\n".join(line.removeprefix("    ") for line in block.splitlines()).strip() for block in found]


def clusters() -> dict[str, ClusterState]:
    """Two H100 in all forms, with one small device in each half of the first; and one that two claims share."""
    held = {"a": "gpu-0-mig-1g10gb-19-1", "b": "gpu-0-mig-1g10gb-19-5", "c": "gpu-1-mig-4g40gb-5-0"}
    claims = [having(name, device, users=(name,)) for name, device in (held | {"d": "gpu-1-mig-1g20gb-15-4"}).items()]
    shares = [
        share("one", memory="50Gi", percent="70", users=("one",)),
        share("two", memory="5Gi", percent="10", users=("two",)),
    ]
    sharing = SharingTerms(strategy=Strategy.MPS, max_shares=8)
    return {"mig": h100(2, claims=claims), "shares": h100(sharing=sharing, claims=shares)}


@pytest.mark.parametrize("command", ["capacity", "devices"])
@pytest.mark.parametrize("name", ["mig", "shares"])
def test_examples_are_real_output(name: str, command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / f"{name}.json"
    dump(clusters()[name], path)
    assert main([command, "--cluster-state", str(path)]) == 0
    assert blocks(f"kubectl dra {command} --cluster-state {name}.json") == [capsys.readouterr().out.strip()]


def test_every_term_of_the_tables_is_explained() -> None:
    for word in ("free", "used", "fragmented", "unavailable", "fits", "by sum", "stranded", "in use"):
        assert f"| {word} |" in TEXT
