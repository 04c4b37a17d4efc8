"""ResourceClaimTemplates for what containers asked for as extended resources. Pure.

Templates of the same content in one namespace are one; their names say what they ask for.
"""

import hashlib
import json
from collections.abc import Sequence
from typing import Any, Final

from msgspec import Struct, field

from dra_driver.kube.published import names
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
        form = self.meaning.form
        if form.form == "partition":
            return f"mig-{form.profile.replace('+', '.')}{_times(self.count)}"
        return f"gpu-share{_times(self.count)}" if form.form == "share" else f"gpu{_times(self.count)}"


class TemplateBook(Struct):
    """The templates of a run, by namespace and content. ``profiles`` are the MIG profiles that anything asks for."""

    profiles: set[str] = field(default_factory=set)
    _made: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)

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
        return str(self._made[key]["metadata"]["name"])

    @property
    def templates(self) -> list[dict[str, Any]]:
        return list(self._made.values())


def request(name: str, wish: DeviceWish, terms: NodeTerms, driver: str) -> dict[str, Any]:
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
    meaning = wish.meaning
    if meaning.strategy != "MPS":
        return {names.MEMORY: "1Mi", **({names.SHARES: str(wish.count)} if wish.count > 1 else {})}
    parts = max(1, meaning.replicas)
    amounts = {
        names.MEMORY: f"{max(1, wish.memory_mib * wish.count // parts)}Mi",
        names.COMPUTE_PERCENT: str(max(1, names.ALL_PERCENT * wish.count // parts)),
    }
    return {**amounts, **({names.SHARES: str(wish.count)} if wish.count > 1 else {})}


def _exactly(wish: DeviceWish, conditions: Sequence[str]) -> dict[str, Any]:
    share = wish.meaning.form.form == "share"
    found: dict[str, Any] = {"deviceClassName": wish.meaning.device_class}
    if conditions:
        kept = list(conditions[: _MAX_SELECTORS - 1])
        if conditions[_MAX_SELECTORS - 1 :]:
            kept.append(" && ".join(f"({each})" for each in conditions[_MAX_SELECTORS - 1 :]))
        found["selectors"] = [{"cel": {"expression": each}} for each in kept]
    if share:
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


def _name(wishes: Sequence[DeviceWish], requests: Sequence[dict[str, Any]]) -> str:
    """Plain where the words say all; otherwise with a part of the content's hash, the same in each run."""
    words = wishes[0].words if len(wishes) == 1 else f"gpus-{len(wishes)}"
    plain = wishes[0]
    share_of_mps = plain.meaning.strategy == "MPS"
    if len(wishes) == 1 and "exactly" in requests[0] and not share_of_mps and not plain.meaning.selector:
        selectors = requests[0]["exactly"].get("selectors") or ()
        if len(selectors) == (1 if plain.meaning.form.form == "share" else 0):
            return words
    digest = hashlib.sha256(json.dumps(requests, sort_keys=True).encode()).hexdigest()[:6]
    return f"{words}-{digest}"


def _times(count: int) -> str:
    return f"-x{count}" if count > 1 else ""
