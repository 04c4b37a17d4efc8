"""The model of the status of a ``GpuPolicy``, from which that part of its CustomResourceDefinition is generated.

The controller writes it from the GpuNodes of the fleet. Counts are of the whole fleet; places are the first of them in
order of their names, and the full lists are in the GpuNodes.
"""

from typing import Annotated, Any, Final

from pydantic import Field

from dra_driver.config.schemas.base import AtMost, Strict
from dra_driver.config.schemas.gpu_node import GpuNames, Line, Sentence, Word

MAX_PLACES: Final = 20
Total = Annotated[int, Field(ge=0, le=2**31 - 1)]


class PolicyPlaceModel(Strict):
    """GPUs of one node."""

    node: Line
    gpus: Annotated[GpuNames | None, Field(description="Names of the GPUs' devices.")] = None
    claims: Annotated[
        Annotated[list[Line], AtMost(MAX_PLACES)] | None,
        Field(description="The claims that the policy waits for, as namespace/name."),
    ] = None
    policies: Annotated[
        Annotated[list[Word], AtMost(MAX_PLACES)] | None, Field(description="The policies with which it conflicts.")
    ] = None
    message: Annotated[Sentence | None, Field(description="Why, in words.")] = None


class PolicyCountModel(Strict):
    """How many nodes and GPUs, and the first of them."""

    nodes: Total
    gpus: Total
    places: Annotated[
        Annotated[list[PolicyPlaceModel], AtMost(MAX_PLACES)] | None, Field(description="The first of them.")
    ] = None


class PolicyStatusModel(Strict):
    """What nodes made of the policy, as last observed."""

    observed_generation: Annotated[
        Annotated[int, Field(ge=0, le=2**53 - 1)] | None,
        Field(description="The generation of the policy that this is about."),
    ] = None
    selected: Annotated[PolicyCountModel | None, Field(description="What the policy selects.")] = None
    in_force: Annotated[PolicyCountModel | None, Field(description="Where it is in force.")] = None
    waiting: Annotated[
        PolicyCountModel | None, Field(description="Where it waits until claims end that use a GPU in another form.")
    ] = None
    refused: Annotated[
        PolicyCountModel | None, Field(description="Where nodes refuse it, or the set it is part of.")
    ] = None
    conflicting: Annotated[
        PolicyCountModel | None, Field(description="Where a policy of the same priority says something else.")
    ] = None
    outranked: Annotated[PolicyCountModel | None, Field(description="Where a policy of higher priority applies.")] = (
        None
    )
    conditions: Annotated[
        list[Any] | None, Field(json_schema_extra={"x-conditions": True}, description="Standard conditions.")
    ] = None
