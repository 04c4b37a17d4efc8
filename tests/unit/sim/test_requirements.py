"""Requirements of examples, and errors for wrong ones."""

from pathlib import Path

import pytest

from dra_driver.core.errors import ConfigurationError
from dra_driver.sim.demo.requirements import Requirements, group_examples, parse_nodes, read_requirements


def example(folder: Path, name: str, *lines: str) -> Path:
    path = folder / name
    path.write_text("\n".join(["# What it shows.", *lines, "# expect: pod/p Pending", "kind: Pod", ""]))
    return path


def test_an_example_without_requirements_runs_on_any_cluster(tmp_path: Path) -> None:
    needs = read_requirements(example(tmp_path, "x.yaml"))
    assert needs == Requirements()
    assert str(needs) == ""


def test_nodes_and_policies_are_read_from_the_header(tmp_path: Path) -> None:
    """Paths are relative to the example, not to the current folder."""
    (tmp_path / "policies").mkdir()
    for name in ("policies/mps.yaml", "policies/b.yaml", "hardware.yaml"):
        (tmp_path / name).write_text("")
    needs = read_requirements(
        example(
            tmp_path,
            "x.yaml",
            "# cluster: gpu-a=4xa100-sxm4-40gb+mig gpu-b=hardware.yaml",
            "# policy: policies/mps.yaml",
            "#policy:policies/b.yaml",
        )
    )
    assert needs.nodes == (("gpu-a", "4xa100-sxm4-40gb+mig"), ("gpu-b", str(tmp_path / "hardware.yaml")))
    assert needs.policies == (tmp_path / "policies/mps.yaml", tmp_path / "policies/b.yaml")
    assert str(needs).endswith("hardware.yaml, policy mps.yaml, policy b.yaml")


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (["# cluster:"], "without a node"),
        (["# cluster: gpu-a"], "'gpu-a' is not a node"),
        (["# cluster: a=1xl4-24gb a=1xl4-24gb"], "node a is given twice"),
        (["# cluster: a=1xl4-24gb", "# cluster: b=1xl4-24gb"], "more than one '# cluster:' line"),
        (["# cluster: a=none.yaml"], "names the file 'none.yaml'"),
        (["# policy: none.yaml"], "names the file 'none.yaml'"),
        (["# policy:"], "names the file ''"),
    ],
)
def test_invalid_requirements_are_errors(tmp_path: Path, lines: list[str], said: str) -> None:
    """An example must not run on other hardware than it names."""
    with pytest.raises(ConfigurationError, match=said) as refused:
        read_requirements(example(tmp_path, "x.yaml", *lines))
    assert "x.yaml" in str(refused.value)


def test_examples_are_grouped_by_requirements(tmp_path: Path) -> None:
    """Those without requirements come first; each cluster is started once."""
    mig = "# cluster: gpu-a=1xh100-sxm5-80gb"
    paths = [
        example(tmp_path, "a.yaml", mig),
        example(tmp_path, "b.yaml"),
        example(tmp_path, "c.yaml", "# cluster: gpu-a=2xh100-sxm5-80gb"),
        example(tmp_path, "d.yaml", mig),
    ]
    names = [[path.name for path in members] for members in group_examples(paths).values()]
    assert names == [["b.yaml"], ["a.yaml", "d.yaml"], ["c.yaml"]]
    assert not group_examples([])


def test_node_flags() -> None:
    assert parse_nodes(["a=4xa100-sxm4-40gb", "b=2xl4-24gb"]) == {"a": "4xa100-sxm4-40gb", "b": "2xl4-24gb"}
    for wrong in (["a"], ["=x"], ["a="], ["a=x", "a=y"]):
        with pytest.raises(ConfigurationError, match="node"):
            parse_nodes(wrong)
