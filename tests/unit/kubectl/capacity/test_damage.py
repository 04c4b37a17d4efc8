"""Objects that no API server returns raise DraError, never another exception."""

import copy
import random
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from dra_driver.core.errors import DraError
from dra_driver.core.model.terms import SharingTerms, Strategy
from dra_driver.kube.state import ClusterState
from dra_driver.kube.state_file import dump
from dra_driver.kubectl.capacity import claims_of, devices_of, survey
from dra_driver.kubectl.commands.kubectl import main
from tests.fakes.dra_objects import Obj, claim
from tests.fakes.published import h100, having, share
from tests.unit.kubectl.capacity.helpers import cluster, holding, mig, shared, whole

NOW = datetime(2026, 1, 1, tzinfo=UTC)
JUNK: tuple[Any, ...] = (None, "", "x", -1, 2**70, 1.5, True, [], {}, [None], {"a": None}, "80Gi", "1e400", "\x00")


def sample() -> list[list[Obj]]:
    """Returns valid slices, claims and nodes."""
    state = cluster(
        [*mig("a"), shared("b"), whole("c", 2)],
        [holding("x", "a", "gpu-0-mig-1g10gb-19-0"), holding("y", "b", "gpu-0", shares="10Gi"), claim("z")],
    )
    return [[copy.deepcopy(dict(item)) for item in items] for items in (state.slices, state.claims, state.nodes)]


def damage(value: Any, chance: random.Random) -> None:
    """Replaces or removes a random value."""
    while True:
        keys = list(value) if isinstance(value, dict) else list(range(len(value)))
        if not keys:
            return
        key = chance.choice(keys)
        inner = value[key]
        if isinstance(inner, dict | list) and inner and chance.random() < 0.85:
            value = inner
            continue
        if chance.random() < 0.3:
            del value[key]
        else:
            value[key] = chance.choice(JUNK)
        return


def look(slices: Any, claims: Any, nodes: Any) -> int:
    """Returns how many of the three functions return without an error."""
    state = ClusterState(slices=slices, claims=claims, nodes=nodes)
    answered = 0
    for function in (survey, devices_of, lambda of: claims_of(of, NOW)):
        try:
            function(state)
        except DraError:
            continue
        answered += 1
    return answered


@pytest.mark.parametrize("seed", [*range(60), *(pytest.param(n, marks=pytest.mark.slow) for n in range(60, 300))])
def test_damaged_objects_give_a_result_or_an_error(seed: int) -> None:
    chance = random.Random(seed)  # noqa: S311  not a secret
    parts = sample()
    for _ in range(chance.choice((1, 1, 2, 5))):
        damage(chance.choice(parts), chance)
    look(*parts)


def test_undamaged_objects_give_three_results() -> None:
    """Without damage all three functions succeed."""
    assert look(*sample()) == 3


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
