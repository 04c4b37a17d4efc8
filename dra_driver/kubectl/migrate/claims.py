"""ResourceClaimTemplates for what containers asked for as extended resources. Pure.

Templates of the same content in one namespace are one; their names say what they ask for.
"""

import hashlib
import json
from collections.abc import Sequence
from typing import Final

from msgspec import Struct, field

from dra_driver.kube.published import names
from dra_driver.kubectl.migrate.ledger import list_at, text_at
from dra_driver.kubectl.migrate.node_terms import NodeTerms
from dra_driver.kubectl.migrate.resources import ResourceMeaning

API: Final = "resource.k8s.io/v1"
_MAX_SELECTORS: Final = 32
_MIB: Final = 2**20


class DeviceWish(Struct, frozen=True, kw_only=True):
    """``count`` units of a resource for one request of a claim; ``memory_mib`` is of one whole GPU, for shares."""

    meaning: ResourceMeaning
    count: int
    memory_mib: int = 0

    @property
    def words(self) -> str:
        """``gpu``, ``gpu-x2``, ``mig-1g.10gb``, ``gpu-share``: for names of templates."""
        profile = self.meaning.form.profile.replace("+", ".")
        word = {"partition": f"mig-{profile}", "share": "gpu-share", "whole": "gpu"}[self.meaning.form.form]
        return f"{word}-x{self.count}" if self.count > 1 else word


class TemplateBook(Struct):
    """The templates of a run, by namespace and content. ``profiles`` are the MIG profiles that anything asks for."""

    profiles: set[str] = field(default_factory=set)
    _made: dict[tuple[str, str], dict[str, object]] = field(default_factory=dict)

    def template(self, namespace: str, wishes: dict[str, DeviceWish], terms: NodeTerms, driver: str) -> str:
        """The name of the template with one request for each of ``wishes``, which is made if there is none yet."""
        requests = [request(name, wish, terms, driver) for name, wish in wishes.items()]
        self.profiles |= {wish.meaning.form.profile for wish in wishes.values()} - {""}
        key = (namespace, json.dumps(requests, sort_keys=True))
        if key not in self._made:
            name = _name(list(wishes.values()), requests)
            metadata = {"name": name, **({"namespace": namespace} if namespace else {})}
            spec = {"spec": {"devices": {"requests": requests}}}
            self._made[key] = {"apiVersion": API, "kind": "ResourceClaimTemplate", "metadata": metadata, "spec": spec}
        return text_at(self._made[key], "metadata", "name")

    @property
    def templates(self) -> list[dict[str, object]]:
        return list(self._made.values())


def request(name: str, wish: DeviceWish, terms: NodeTerms, driver: str) -> dict[str, object]:
    """One request of a claim; with preferred conditions, alternatives that are tried in their order."""
    form = wish.meaning.form
    required = [*_inherent(wish.meaning, driver), *terms.required.get(form, ())]
    preferred = [each for each in terms.preferred.get(form, ()) if each]
    plain = _exactly(wish, required)
    if not preferred:
        return {"name": name, "exactly": plain}
    several = len(preferred) > 1
    alternatives = [
        {"name": f"preferred-{number}" if several else "preferred", **_exactly(wish, [*required, each])}
        for number, each in enumerate(preferred, start=1)
    ]
    return {"name": name, "firstAvailable": [*alternatives, {"name": "any", **plain}]}


def share_amounts(wish: DeviceWish) -> dict[str, str]:
    """What a share consumes: as much as the device plugin's replicas stood for.

    Time-slicing replicas have no memory of their own, so a share asks for the least that can be asked for; the policy's
    ``maxShares`` bounds their number. A client of the plugin's MPS has an equal part of memory and compute.
    """
    amounts = {names.MEMORY: "1Mi"}
    if wish.meaning.strategy == "MPS":
        parts = max(1, wish.meaning.replicas)
        amounts = {
            names.MEMORY: f"{max(1, wish.memory_mib * wish.count // parts)}Mi",
            names.COMPUTE_PERCENT: str(max(1, names.ALL_PERCENT * wish.count // parts)),
        }
    return {**amounts, **({names.SHARES: str(wish.count)} if wish.count > 1 else {})}


def _exactly(wish: DeviceWish, conditions: Sequence[str]) -> dict[str, object]:
    found: dict[str, object] = {"deviceClassName": wish.meaning.device_class}
    if conditions:
        kept = list(conditions[: _MAX_SELECTORS - 1])
        if conditions[_MAX_SELECTORS - 1 :]:
            kept.append(" && ".join(f"({each})" for each in conditions[_MAX_SELECTORS - 1 :]))
        found["selectors"] = [{"cel": {"expression": each}} for each in kept]
    if wish.meaning.form.form == "share":
        found["capacity"] = {"requests": share_amounts(wish)}
    elif wish.count > 1:
        found["count"] = wish.count
    return found


def _inherent(meaning: ResourceMeaning, driver: str) -> list[str]:
    """Conditions that the resource itself implies: a share must not take a GPU that nothing shares."""
    if meaning.selector:
        return [meaning.selector]
    if meaning.form.form != "share":
        return []
    attributes = f'device.attributes["{driver}"]'
    strategy = f'{attributes}.{names.SHARING_STRATEGY} == "{meaning.strategy}"'
    return [f'"{names.SHARING_STRATEGY}" in {attributes} && {strategy}']


def _name(wishes: Sequence[DeviceWish], requests: Sequence[dict[str, object]]) -> str:
    """Plain where the words say all; otherwise with a part of the content's hash, the same in each run."""
    first = wishes[0]
    words = first.words if len(wishes) == 1 else f"gpus-{len(wishes)}"
    if len(wishes) == 1 and "exactly" in requests[0] and first.meaning.strategy != "MPS" and not first.meaning.selector:
        selectors = list_at(requests[0], "exactly", "selectors")
        if len(selectors) == (1 if first.meaning.form.form == "share" else 0):
            return words
    digest = hashlib.sha256(json.dumps(requests, sort_keys=True).encode()).hexdigest()[:6]
    return f"{words}-{digest}"
