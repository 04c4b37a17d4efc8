"""Applies a patch in one of the four formats of the Kubernetes API. Pure: returns the new object."""

from typing import Any

from msgspec import Struct

from dra_driver.sim.apiserver.api_errors import bad_request
from dra_driver.sim.apiserver.jsonvalue import Obj, copy_json
from dra_driver.sim.apiserver.kind import ResourceKind
from dra_driver.sim.apiserver.patch.jsonpatch import apply_json_patch
from dra_driver.sim.apiserver.patch.mergepatch import merge
from dra_driver.sim.apiserver.patch.serverapply import apply
from dra_driver.sim.apiserver.patch.strategicpatch import strategic_merge
from dra_driver.sim.apiserver.schema import decode, type_of

JSON_PATCH = "application/json-patch+json"
MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"
PATCH_TYPES = (JSON_PATCH, MERGE_PATCH, STRATEGIC_PATCH, APPLY_PATCH)


class Patch(Struct, frozen=True, kw_only=True):
    """A change: ``body`` is a list of operations for JSON patches, else an object; ``type`` one of `PATCH_TYPES`.

    ``manager`` and ``force`` are for apply patches: the owner of the fields, and whether to take over others' fields.
    """

    body: Any
    type: str = MERGE_PATCH
    manager: str = ""
    force: bool = False

    @property
    def is_apply(self) -> bool:
        """Whether this is a server-side apply, which may create the object."""
        return self.type == APPLY_PATCH


def apply_patch(kind: ResourceKind, old: Obj | None, patch: Patch, *, now: str, subresource: str = "") -> Obj:
    """A new object: ``old`` with ``patch`` applied. Raises InvalidObjectError (400, 422) or ConflictError (apply)."""
    if patch.type == JSON_PATCH:
        changed = apply_json_patch(copy_json(old), patch.body)
    elif not isinstance(patch.body, dict):
        raise bad_request(f"a patch of type {patch.type} must be an object, got {type(patch.body).__name__}")
    elif patch.is_apply:
        config = copy_json(patch.body)
        decode(kind, config)
        changed = apply(kind, old, config, patch.manager, now, force=patch.force, subresource=subresource)
    elif patch.type == STRATEGIC_PATCH:
        changed = strategic_merge(copy_json(old), patch.body, type_of(kind))
    else:
        changed = merge(copy_json(old), patch.body)
    if not isinstance(changed, dict):
        raise bad_request(f"the patch would turn the {kind.kind} into a {type(changed).__name__}")
    return changed
