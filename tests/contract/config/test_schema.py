"""The models that people read and the schema that nodes check with are the same thing."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from dra_driver.config.rules import OWN_ATTRIBUTES
from dra_driver.config.schema import problems, schemas
from dra_driver.core.model.terms import GpuTerms, SharingTerms, Strategy
from dra_driver.node.slices import ApiServerFeatures, build_devices
from tests.contract.config import samples
from tests.fakes.scripts import script
from tests.fakes.simulated_gpus import SimulatedBackend

MODELS = {model.__name__: model for model in script("schema_export").KINDS}
ROUNDS = 4000


def by_model(kind: str, value: Any) -> set[tuple[Any, ...]]:
    """Paths that the model complains about."""
    try:
        MODELS[kind].model_validate(value)
    except ValidationError as error:
        return {problem["loc"] for problem in error.errors(include_url=False, include_input=False)}
    return set()


def by_schema(kind: str, value: Any) -> set[tuple[Any, ...]]:
    """Paths that the node complains about."""
    return {problem.path for problem in problems(value, schemas()[kind])}


@pytest.mark.parametrize("kind", MODELS)
def test_both_refuse_the_same_fields_of_broken_objects(kind: str) -> None:
    """A claim that `kubectl dra lint` accepts must not fail on the node, and the other way round."""
    refused = 0
    for seed in range(ROUNDS):
        value = samples.broken(kind, seed)
        expected = by_model(kind, value)
        assert by_schema(kind, value) == expected, value
        refused += bool(expected)
    assert ROUNDS // 2 < refused < ROUNDS  # both answers occur, or the comparison shows nothing


@pytest.mark.parametrize("kind", MODELS)
def test_both_agree_about_objects_whose_fields_are_right_by_themselves(kind: str) -> None:
    """What is left to refuse are conditions over several fields, and those are the same too."""
    accepted = 0
    for seed in range(ROUNDS // 2):
        value = samples.right(kind, seed)
        expected = by_model(kind, value)
        assert by_schema(kind, value) == expected, value
        accepted += not expected
    assert accepted > ROUNDS // 40


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("value", [None, 1, "x", [], {}, [{}]])
def test_both_refuse_what_is_no_such_object_at_all(kind: str, value: Any) -> None:
    """Neither falls over the shape of the outermost value."""
    assert by_schema(kind, value) == by_model(kind, value) != set()


def test_every_attribute_that_the_driver_publishes_is_its_own(tmp_path: Path) -> None:
    """Whole, shared, placements and a partition of another manager: no policy can overwrite their attributes."""
    spec = tmp_path / "gpus.yaml"
    spec.write_text(
        "gpus:\n- {model: h100-sxm5-80gb}\n"
        "- {model: a100-sxm4-80gb, migEnabled: true, instances: [{profile: 3g.40gb, start: 0}]}\n"
    )
    snapshot = SimulatedBackend.from_spec(str(spec), "node-1").snapshot()
    shared = GpuTerms(sharing=SharingTerms(strategy=Strategy.MPS))
    features = ApiServerFeatures(counters=True, taints=True, multi_allocation=True)
    built = build_devices(snapshot, {snapshot.gpus[0].uuid: shared}, features)
    names = {name.rpartition("/")[2] for device in built.devices for name in device.attributes}
    assert {"uuid", "profile", "parentUUID", "sharingStrategy", "placementStart"} <= names
    assert names <= set(OWN_ATTRIBUTES)
