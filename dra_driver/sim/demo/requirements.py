"""What an example needs of the cluster it runs on, read from its comments.

Owns the grammar of ``# cluster:`` and ``# policy:`` lines. Refuses to know how such a cluster is had (`stage` for the
embedded one; a test on a real cluster starts its node process with the same words).

    # cluster: gpu-a=4xa100-sxm4-40gb+mig           exactly these nodes with these GPUs; several nodes separated by
    # cluster: gpu-a=1xh100-sxm5-80gb gpu-b=hw.yaml   blanks; a specification file lies relative to the example
    # policy: policies/mps.yaml                     a GpuPolicy file in force on every node, relative to the example;
                                                      may be repeated

Without a ``# cluster:`` line an example runs on whatever is there, without a ``# policy:`` line with no policy in
force. Examples with the same needs share a cluster.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dra_driver.errors import ConfigurationError

_LINE: Final = re.compile(r"^#[ \t]*(cluster|policy):[ \t]*(.*?)[ \t]*$", re.MULTILINE)
_FILES: Final = (".yaml", ".yml")


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirements:
    """``nodes`` are pairs of a node's name and its hardware, () for whatever is there. Hashable, so it can be a key."""

    nodes: tuple[tuple[str, str], ...] = ()
    policies: tuple[Path, ...] = ()

    def __str__(self) -> str:
        """``gpu-a=4xa100-sxm4-40gb+mig, policy mps.yaml``; "" without any needs."""
        nodes = " ".join(f"{name}={spec}" for name, spec in self.nodes)
        return ", ".join([*([nodes] if nodes else []), *(f"policy {path.name}" for path in self.policies)])


def read_requirements(example: Path) -> Requirements:
    """The needs of one example. Raises ConfigurationError that names the example when it cannot be read as such."""
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
            raise ConfigurationError(f"{example} has more than one '# cluster:' line; list all nodes in one")
        nodes.update(parse_nodes(value.split(), str(example)))
        if not nodes:
            raise ConfigurationError(f"{example}: '# cluster:' without a node, expected NAME=SPEC")
    found = tuple((name, str(_file(example, spec)) if spec.endswith(_FILES) else spec) for name, spec in nodes.items())
    return Requirements(nodes=found, policies=tuple(policies))


def group_examples(examples: Iterable[Path]) -> dict[Requirements, list[Path]]:
    """Examples by what they need: those without needs first, then in the order in which the needs first appear."""
    groups: dict[Requirements, list[Path]] = {Requirements(): []}
    for example in examples:
        groups.setdefault(read_requirements(example), []).append(example)
    return {needs: members for needs, members in groups.items() if members}


def parse_nodes(values: Iterable[str], source: str = "") -> dict[str, str]:
    """``gpu-a=4xa100-sxm4-40gb`` as a mapping. Raises ConfigurationError for anything else."""
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
        raise ConfigurationError(f"{example} names the file {value!r}, but there is no {path}")
    return path.absolute()
