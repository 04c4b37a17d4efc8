"""Translate all inputs: first configurations, then dependent objects."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import PurePath
from typing import Any, Final

from msgspec import Struct, field
from msgspec.structs import replace

from dra_driver.core.errors import ConfigurationError
from dra_driver.kubectl.migrate import plugin_config, policies, workloads
from dra_driver.kubectl.migrate.ledger import (
    CARRIED,
    LOST,
    FieldNote,
    Gathered,
    InputDocument,
    Ledger,
    Path,
    apply,
    at,
    mapping_at,
)
from dra_driver.kubectl.migrate.node_terms import keeps_labels
from dra_driver.kubectl.migrate.operator_fields import (
    DRA_DRIVER_KEYS,
    DRA_DRIVER_VALUES,
    OWN_KEYS,
    SPEC,
    VALUE_KEYS,
    VALUES,
)
from dra_driver.kubectl.migrate.plugin_config import (
    CHART_OWN_KEYS,
    CHART_VALUE_KEYS,
    CHART_VALUES,
    is_plugin_config,
    is_plugin_daemonset,
    translate_daemonset,
)
from dra_driver.kubectl.migrate.policies import PolicyDraft, ambiguity, classes, known_resources, memory_of
from dra_driver.kubectl.migrate.resources import TemplateBook
from dra_driver.kubectl.migrate.workloads import PodOptions

# --- Configs in ConfigMaps and in values of a chart.
#
# The node label nvidia.com/device-plugin.config names a key of the device plugin's ConfigMap. mig-parted's ConfigMap
# has one file with all layouts; the node label nvidia.com/mig.config names the layout.

ReadText = Callable[[str, str], Sequence[InputDocument]]
"""Read the documents of a text in another document; the second argument is its place."""
_INLINE: Final = (("config", "map"), ("devicePlugin", "config", "data"), ("migManager", "config", "data"))
_MARKS: Final = ("mig-configs:", "sharing:", "migStrategy", "flags:", '"sharing"', '"mig-configs"', '"flags"')


def contents(
    document: InputDocument, read_text: ReadText
) -> tuple[list[tuple[str, InputDocument]], tuple[FieldNote, ...]]:
    """Return the configs in a ConfigMap by their keys, and notes about the ConfigMap. Raises ConfigurationError."""
    found = _read(document, ("data",), read_text)
    if not found:
        return [], untouched(document)
    ledger = Ledger(document)
    for key, _ in found:
        ledger.carried(("data", key), "read as a configuration; its fields are listed separately")
    return found, ledger.close(CARRIED, "unchanged, for the nodes of the device plugin")


def untouched(document: InputDocument) -> tuple[FieldNote, ...]:
    return Ledger(document).close(CARRIED, "unchanged and not printed: it requests no GPU")


def inline(document: InputDocument, read_text: ReadText) -> list[tuple[str, InputDocument]]:
    return [each for path in _INLINE for each in _read(document, path, read_text)]


def translate_config(document: InputDocument, key: str, gathered: Gathered) -> tuple[FieldNote, ...]:
    if policies.is_mig_parted(document.value):
        return policies.read_layouts(document, gathered)
    return plugin_config.translate(document, key, gathered)


def translate_file(document: InputDocument, gathered: Gathered) -> tuple[FieldNote, ...]:
    """Translate a device plugin config from a file. It applies to all nodes: no label selects it."""
    stem = PurePath(document.source).stem
    name = stem if stem.isprintable() and stem not in {"", "-", "<stdin>"} else "config"
    gathered.standalone.add(name)
    return plugin_config.translate(document, name, gathered)


def _read(document: InputDocument, path: Sequence[str], read_text: ReadText) -> list[tuple[str, InputDocument]]:
    found = []
    for key, text in mapping_at(document.value, *path).items():
        if isinstance(text, dict):  # values may contain a mapping instead of a text
            found.append((key, replace(document, value=text, lines={}, inside=f"{'.'.join(path)}.{key}")))
            continue
        if not isinstance(text, str) or not any(mark in text for mark in _MARKS):
            continue
        where = f"{document.source}:{document.line_of((*path, key))}: {document.label}, {'.'.join(path)}.{key}"
        for each in read_text(text, where):
            if policies.is_mig_parted(each.value) or plugin_config.is_plugin_config(each.value):
                found.append((key, replace(each, number=document.number, inside=where)))
    return found


_MOST_ITEMS: Final = 20_000
_OPERATOR_GROUP: Final = "nvidia.com/"


def format_of(document: InputDocument) -> str:
    """Return the name of the format. Raises ConfigurationError if it is unknown."""
    value = document.value
    if not isinstance(value, dict):
        seen = "nothing" if value is None else "a list" if isinstance(value, list) else f"the text {str(value)[:40]!r}"
        raise ConfigurationError(f"{document.place}: expected an object or a configuration, got {seen}")
    if document.kind:
        return _format_of_object(document)
    if "{{" in str(value.get("kind")) or any("{{" in str(key) for key in value):
        raise ConfigurationError(f"{document.place}: a Helm template; render it first (helm template RELEASE CHART)")
    if policies.is_mig_parted(value):
        return "mig-parted"
    if is_plugin_config(value):
        return "plugin-config"
    keys = set(value)
    if keys & DRA_DRIVER_KEYS:
        return "dra-driver-values"
    if keys & OWN_KEYS and keys <= VALUE_KEYS | {"daemonsets"}:
        return "operator-values"
    if keys & CHART_OWN_KEYS and len(keys & CHART_VALUE_KEYS) * 2 > len(keys):
        return "plugin-values"
    if len(keys & VALUE_KEYS) * 2 > len(keys):
        return "operator-values"
    shown = ", ".join(str(key)[:30] for key in list(value)[:5])
    raise ConfigurationError(
        f"{document.place}: unknown format (it begins with {shown}); expected Kubernetes objects, a device plugin or"
        " mig-parted config, or values of the device plugin's or the GPU Operator's chart"
    )


def _format_of_object(document: InputDocument) -> str:
    version = document.api_version
    if document.kind == "ClusterPolicy" and version.startswith(_OPERATOR_GROUP):
        if version != "nvidia.com/v1":
            raise ConfigurationError(
                f"{document.place}: unknown ClusterPolicy version {version[:40]}; expected nvidia.com/v1"
            )
        return "cluster-policy"
    if version.startswith(_OPERATOR_GROUP):
        return "operator-object"
    if "{{" in document.name or "{{" in document.kind or "{{" in version:
        raise ConfigurationError(f"{document.place}: a Helm template; render it first (helm template RELEASE CHART)")
    if is_plugin_daemonset(document.value):
        return "plugin-daemonset"
    formats = {"ConfigMap": "config-map", "Node": "node", "ResourceQuota": "quota", "LimitRange": "limit-range"}
    return formats.get(document.kind, "object")


def items(document: InputDocument) -> Iterator[InputDocument]:
    waiting, count = [document], 0
    while waiting:
        each = waiting.pop()
        inside = at(each.value, "items")
        if not each.kind.endswith("List") or not isinstance(inside, list):
            yield each
            continue
        count += len(inside)
        if count > _MOST_ITEMS:
            raise ConfigurationError(f"{document.place}: the list exceeds {_MOST_ITEMS} objects; split it")
        # One pass over the lines, as lists have thousands of items.
        lines: defaultdict[object, dict[Path, int]] = defaultdict(dict)
        for path, line in each.lines.items():
            if path[:1] == ("items",) and path[1:]:
                lines[path[1]][path[2:]] = line
        # A typed list has kind and version once; a plain List has them per item.
        usual = {"apiVersion": each.api_version, "kind": kind} if (kind := each.kind.removesuffix("List")) else {}
        for index, item in reversed(list(enumerate(inside))):
            value = {**usual, **item} if isinstance(item, dict) and "kind" not in item else item
            line = each.line_of(("items", index))
            waiting.append(replace(each, value=value, line=line, lines=lines[index]))


_ODD: Final = (AttributeError, TypeError, KeyError, IndexError, ValueError)
"""Errors caused by values of an unexpected type."""
_TABLES = {"operator-values": VALUES, "plugin-values": CHART_VALUES, "dra-driver-values": DRA_DRIVER_VALUES}
_OPERATOR: Final = {
    "NVIDIADriver": "the GPU Operator continues to install the NVIDIA driver",
    "GPUCluster": "it deploys NVIDIA's DRA driver, which has the same driver name: run only one of them on a node",
}
_OTHER_OPERATOR: Final = "the GPU Operator continues to use this object"
_NODE: Final = "unchanged; its labels select its configuration"
_TOLERATIONS: Final = (
    "the admission plugin ExtendedResourceToleration adds a toleration for the taint nvidia.com/gpu only to pods with"
    " that extended resource; for pods with claims, set podToleration.enabled of the chart"
)
_LABELS_KEPT: Final = "labels of GPU Feature Discovery: such pods stay pending on nodes without it"
_COMMENTS: Final = "comments of the workloads are lost, and anchors are expanded"
_KEPT_COSTS: Final = (
    "They need Kubernetes 1.36 or the feature gate DRAExtendedResource, and labels of GPU Feature Discovery to select"
    " devices. They cannot use shares. Only this driver's controller evicts them from unhealthy GPUs (eviction.enabled)"
)
_CLUSTER_POLICY: Final = {
    **dict.fromkeys(("apiVersion", "kind", "metadata"), "identifies the object"),
    "status": "the GPU Operator writes it",
}


ApiObject = dict[str, Any]
"""A printed object, or the chart's values."""


class MigrateOptions(Struct, frozen=True, kw_only=True):
    """``driver`` is the DRA driver. ``keep``: do not change pods that can run unchanged.
    ``gpu_memory_mib`` is of a shared GPU, or 0."""

    driver: str = "gpu.nvidia.com"
    keep: bool = False
    gpu_memory_mib: int = 0


class Translation(Struct):
    """Result of all inputs. ``workloads`` are changed objects with their files."""

    policies: list[ApiObject] = field(default_factory=list)
    classes: list[ApiObject] = field(default_factory=list)
    templates: list[ApiObject] = field(default_factory=list)
    workloads: list[tuple[str, ApiObject]] = field(default_factory=list)
    values: ApiObject = field(default_factory=dict)
    notes: list[FieldNote] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    hints: list[str] = field(default_factory=list)
    inputs: int = 0
    could_stay: int = 0

    @property
    def objects(self) -> list[ApiObject]:
        return [*self.policies, *self.classes, *self.templates, *(value for _, value in self.workloads)]


def translate(documents: Iterable[InputDocument], options: MigrateOptions, read_text: ReadText) -> Translation:
    """Translate all documents. An unreadable document becomes a problem."""
    found, gathered = Translation(), Gathered()
    later: list[tuple[str, InputDocument]] = []
    for document in documents:
        try:
            for each in items(document):
                found.inputs += 1
                _first(each, gathered, found, later, read_text)
        except ConfigurationError as error:
            found.problems.append(str(error))
        except _ODD as error:
            found.problems.append(_odd(document, error))
    policies.set_shared_class(gathered)
    known = known_resources(gathered, options.driver)
    memory = memory_of(gathered, options.gpu_memory_mib)
    pod_options = PodOptions(keep=options.keep, resources=known, memory=memory)
    book = TemplateBook()
    for name, document in later:
        try:
            _second(name, document, pod_options, book, found)
        except _ODD as error:
            found.problems.append(_odd(document, error))
    drafts = policies.drafts(gathered)
    found.policies = policies.objects(drafts)
    found.templates = book.templates
    found.classes = classes(gathered, book.profiles, options.driver)
    if options.keep and found.could_stay:
        gathered.set_value(("eviction", "enabled"), True)
    for (*above, last), value in gathered.values.items():
        place = found.values
        for key in above:
            place.setdefault(key, {})
            place = mapping_at(place, key)
        place[last] = value
    found.hints = _hints(gathered, drafts, found, keep=options.keep)
    return found


def _odd(document: InputDocument, error: Exception) -> str:
    return (
        f"{document.place}: {document.label}: a field has an unexpected type ({type(error).__name__}:"
        f" {str(error)[:80]}). Run `kubectl apply --dry-run=server` to find it"
    )


def _first(
    document: InputDocument,
    gathered: Gathered,
    found: Translation,
    later: list[tuple[str, InputDocument]],
    read_text: ReadText,
) -> None:
    name = format_of(document)
    match name:
        case "quota" | "limit-range" | "object":
            later.append((name, document))
        case "config-map":
            inside, notes = contents(document, read_text)
            found.notes += notes
            for key, each in inside:
                found.notes += translate_config(each, key, gathered)
        case "mig-parted":
            found.notes += policies.read_layouts(document, gathered)
        case "plugin-config":
            found.notes += translate_file(document, gathered)
        case "node":
            labels = mapping_at(document.value, "metadata", "labels")
            gathered.node_labels[document.name] = {key: str(value) for key, value in labels.items()}
            found.notes += Ledger(document).close(CARRIED, _NODE)
        case "plugin-daemonset":
            found.notes += translate_daemonset(document, gathered)
        case "operator-object":
            found.notes += Ledger(document).close(LOST, _OPERATOR.get(document.kind, _OTHER_OPERATOR))
        case "cluster-policy":
            ledger = Ledger(document)
            for key in _CLUSTER_POLICY.keys() & mapping_at(document.value).keys():
                ledger.carried((key,), _CLUSTER_POLICY[key])
            apply(mapping_at(document.value, "spec"), SPEC, ledger, gathered, ("spec",))
            found.notes += ledger.close()
        case _:
            ledger = Ledger(document)
            apply(document.value, _TABLES[name], ledger, gathered)
            for key, each in inline(document, read_text):
                found.notes += translate_config(each, key, gathered)
            found.notes += ledger.close()


def _second(name: str, document: InputDocument, options: PodOptions, book: TemplateBook, found: Translation) -> None:
    if name == "quota":
        done = workloads.translate_quota(document, options.resources)
    elif name == "limit-range":
        done = workloads.translate_limit_range(document, options.resources)
    elif any(True for _ in workloads.pod_specs(document.value)):
        done = workloads.translate(document, options, book)
    else:
        done = workloads.TranslatedObject(notes=untouched(document))
    found.could_stay += done.can_stay
    found.notes += done.notes
    if done.value is not None:
        found.workloads.append((document.source, done.value))


def _hints(gathered: Gathered, drafts: Sequence[PolicyDraft], found: Translation, *, keep: bool) -> list[str]:
    hints = [f"chart values: {conflict}" for conflict in gathered.value_conflicts]
    hints += [found_ambiguity] if (found_ambiguity := ambiguity(gathered)) and found.templates else []
    everywhere = [draft.name for draft in drafts if draft.nodes is None and not draft.priority]
    if everywhere[1:]:
        hints.append(f"{' and '.join(everywhere)} conflict: each applies to all GPUs; keep one of them")
    unknown = sum(policies.needs_names(draft) for draft in drafts)
    if unknown:
        hints.append(
            f"{unknown} policies select nodes by a label and match no node yet: add node names to select.nodeNames,"
            " or add `kubectl get nodes -o yaml` to the inputs, or use --from-cluster"
        )
    if any(value.get("kind") not in {"ResourceQuota", "LimitRange"} for _, value in found.workloads):
        hints += [_TOLERATIONS, _COMMENTS]
    waiting = {(note.file, note.document) for note in found.notes if keeps_labels(note)}
    if waiting:
        hints.append(f"{len(waiting)} {'workload keeps' if len(waiting) == 1 else 'workloads keep'} {_LABELS_KEPT}")
    if found.could_stay and not keep:
        hints.append(f"{found.could_stay} workloads could stay unchanged: --keep-extended-resources. {_KEPT_COSTS}")
    elif found.could_stay:
        hints.append(f"{found.could_stay} workloads stay unchanged. {_KEPT_COSTS}")
    return hints
