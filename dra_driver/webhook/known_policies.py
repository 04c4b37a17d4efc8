"""The attributes that GpuPolicies add, in the form that lint takes: as few policies as have each of them. Pure."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from msgspec import Struct

from dra_driver.config.policy import API_VERSION, KIND
from dra_driver.config.webhook_files import Attributes
from dra_driver.kubectl.lint import ManifestSource

MAX_FORMS: Final = 8
"""As many as lint uses (``policy_devices.MAX_POLICIES``). Each is one more set of devices to try selectors on."""
SOURCE: Final = "policies"


class KnownPolicies(Struct, frozen=True, kw_only=True):
    """``complete``: every attribute of every policy is in one of ``sources``, with its only type."""

    sources: Sequence[ManifestSource] = ()
    complete: bool = False


def known_policies(attributes: Attributes | None, *, more_in_files: bool = False) -> KnownPolicies:
    """From what the controller handed over; None means that it does not know them either.

    ``more_in_files``: nodes have policies in files too, which are not among them.
    """
    if attributes is None:
        return KnownPolicies()
    forms: dict[str, Mapping[str, Any]] = {}
    types: dict[str, str] = {}
    clash = False
    for name, items in sorted(attributes.items()):
        added = _types(items)
        clash = clash or any(types.setdefault(key, kind) != kind for key, kind in added.items())
        if added and not clash:
            forms.setdefault(json.dumps(added, sort_keys=True), _policy(name, items))
    complete = not clash and not more_in_files and len(forms) <= MAX_FORMS
    text = "\n---\n".join(json.dumps(form) for form in list(forms.values())[:MAX_FORMS])
    return KnownPolicies(sources=(ManifestSource(name=SOURCE, text=text),) if text else (), complete=complete)


def _types(items: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Attribute -> the field that has its value: string, int, bool or version."""
    return {
        str(item["name"]): next((str(key) for key in item if key != "name"), "")
        for item in items
        if isinstance(item, Mapping) and "name" in item
    }


def _policy(name: str, items: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    header = {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": name}}
    return {**header, "spec": {"attributes": list(items)}}
