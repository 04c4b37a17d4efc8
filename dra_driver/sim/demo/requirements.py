"""Parse the ``# cluster:`` and ``# policy:`` lines of an example; without one it runs on any cluster, without policies.
Examples with the same requirements share a cluster.

    # cluster: gpu-a=4xa100-sxm4-40gb+mig           exactly these nodes with these GPUs; several nodes separated by
    # cluster: gpu-a=1xh100-sxm5-80gb gpu-b=hw.yaml   blanks; paths of specification files are relative to the example
    # policy: policies/mps.yaml                     a GpuPolicy file for every node, relative to the example; repeatable
"""

import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Final

from msgspec import Struct

from dra_driver.core.errors import ConfigurationError
from dra_driver.sim.cluster import Cluster

_LINE: Final = re.compile(r"^#[ \t]*(cluster|policy):[ \t]*(.*?)[ \t]*$", re.MULTILINE)
_FILES: Final = (".yaml", ".yml")


class Requirements(Struct, frozen=True, kw_only=True):
    """``nodes`` are pairs of a node's name and its hardware, () for any cluster. Hashable."""

    nodes: tuple[tuple[str, str], ...] = ()
    policies: tuple[Path, ...] = ()

    def __str__(self) -> str:
        """``gpu-a=4xa100-sxm4-40gb+mig, policy mps.yaml``; "" without requirements."""
        nodes = " ".join(f"{name}={spec}" for name, spec in self.nodes)
        return ", ".join([*([nodes] if nodes else []), *(f"policy {path.name}" for path in self.policies)])


def read_requirements(example: Path) -> Requirements:
    """The requirements of one example. Raises ConfigurationError that names the example if they are invalid."""
    try:
        text = example.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"cannot read {example}: {error}") from error
    nodes: dict[str, str] = {}
    policies: list[Path] = []
    for what, value in _LINE.findall(text):
        if what == "policy":
            policies.append(_file(example, value))
            continue
        if nodes:
            raise ConfigurationError(f"{example} has more than one '# cluster:' line: list all nodes in one")
        nodes.update(parse_nodes(value.split(), str(example)))
        if not nodes:
            raise ConfigurationError(f"{example}: '# cluster:' without a node, expected NAME=SPEC")
    found = tuple((name, str(_file(example, spec)) if spec.endswith(_FILES) else spec) for name, spec in nodes.items())
    return Requirements(nodes=found, policies=tuple(policies))


def group_examples(examples: Iterable[Path]) -> dict[Requirements, list[Path]]:
    """Examples by requirements: those without any first, then in the order of first appearance."""
    groups: dict[Requirements, list[Path]] = {Requirements(): []}
    for example in examples:
        groups.setdefault(read_requirements(example), []).append(example)
    return {requirements: members for requirements, members in groups.items() if members}


def parse_nodes(values: Iterable[str], source: str = "") -> dict[str, str]:
    """Parse values such as ``gpu-a=4xa100-sxm4-40gb``. Raises ConfigurationError for other forms and repeated names."""
    nodes: dict[str, str] = {}
    where = f"{source}: " if source else ""
    for value in values:
        name, separator, spec = value.partition("=")
        if not separator or not name or not spec:
            raise ConfigurationError(
                f"{where}{value!r} is not a node: expected NAME=SPEC such as gpu-a=4xa100-sxm4-40gb"
            )
        if name in nodes:
            raise ConfigurationError(f"{where}node {name} is given twice")
        nodes[name] = spec
    return nodes


def _file(example: Path, value: str) -> Path:
    path = example.parent / value
    if not value or not path.is_file():
        raise ConfigurationError(f"{example} names the file {value!r}, but {path} does not exist")
    return path.absolute()


class ClusterPool:
    """A context manager that provides running clusters. ``nodes`` are for examples without requirements. ``prepare`` is
    called once with each started cluster. Ask in the order of `group_examples`, so that each cluster starts once."""

    def __init__(self, nodes: Mapping[str, str], prepare: Callable[[Cluster], object] = lambda _cluster: None) -> None:
        self._nodes = dict(nodes)
        self._prepare = prepare
        self._requirements: Requirements | None = None
        self._cluster: Cluster | None = None

    def __enter__(self) -> "ClusterPool":
        return self

    def __exit__(self, *_exc: object) -> None:
        self.stop()

    def cluster(self, requirements: Requirements) -> Cluster:
        """A running cluster that meets the requirements, with published GPUs; stops the former one if it does not.
        Raises ConfigurationError or RetryableError."""
        if self._cluster is None or self._requirements != requirements:
            self.stop()
            cluster = Cluster(dict(requirements.nodes) or self._nodes, policies=requirements.policies)
            self._cluster, self._requirements = cluster, requirements
            cluster.start()
            self._prepare(cluster)
        return self._cluster

    def stop(self) -> None:
        if self._cluster is not None:
            self._cluster.stop()
        self._cluster = self._requirements = None
