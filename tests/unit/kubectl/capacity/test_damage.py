"""Objects that no API server returns raise DraError, never another exception."""

import copy
import random
from datetime import UTC, datetime
from typing import Any

import pytest

from dra_driver.core.errors import DraError
from dra_driver.kube.state import ClusterState
from dra_driver.kubectl.capacity import claims_of, devices_of, survey
from tests.fakes.dra_objects import Obj, claim
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
