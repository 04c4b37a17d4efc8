"""Rule DRA060 for GpuPolicy objects: policies that a node would refuse.

Policies are checked by the code that the node process runs (``config.policy``). Whether two policies conflict depends
on the GPUs; ``dra-driver policy check --gpus`` finds such conflicts.
"""

from collections.abc import Sequence
from typing import Final

from dra_driver.config.policy import API_VERSION, KIND, policy_problems
from dra_driver.config.schema import Step, path_text
from dra_driver.kubectl.lint.manifest import Manifest
from dra_driver.kubectl.lint.nodes import Spot, plain
from dra_driver.kubectl.lint.reporter import Reporter

_GROUP: Final = API_VERSION.partition("/")[0]


def check_policy(manifest: Manifest, reporter: Reporter) -> None:
    """Reports every invalid field; ignores objects of other kinds."""
    if manifest.group != _GROUP or manifest.kind != KIND:
        return
    try:
        written = plain(manifest.spot.node)
    except ValueError as error:
        reporter.add("DRA060", manifest, manifest.spot, f"the policy {error}")
        return
    for problem in policy_problems(written):
        text = f"{path_text(problem.path)}: {problem.text}" if problem.path else problem.text
        hint = "check spelling and indentation; names are case-sensitive" if problem.text == "unknown field" else ""
        reporter.add("DRA060", manifest, _nearest(manifest.spot, problem.path), text, hint=hint)


def _nearest(spot: Spot, path: Sequence[Step]) -> Spot:
    """Returns the value at a path, or its nearest existing parent."""
    for step in path:
        node = spot.node
        below = node.items[step : step + 1] if isinstance(step, int) else [node.get(step)]
        found = below[0] if below else None
        if found is None:
            break
        spot = Spot(found, spot.path)
    return spot
