"""All inputs to all outputs: configurations first, then the objects that depend on what they say. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from msgspec import Struct, field

from dra_driver.core.errors import ConfigurationError
from dra_driver.kubectl.migrate import mig_parted, policies, workloads
from dra_driver.kubectl.migrate.claims import TemplateBook
from dra_driver.kubectl.migrate.formats import (
    ReadText,
    contents,
    format_of,
    inline,
    items,
    translate_config,
    translate_file,
    untouched,
)
from dra_driver.kubectl.migrate.ledger import (
    CARRIED,
    LOST,
    Gathered,
    InputDocument,
    Ledger,
    MigrationNote,
    Rules,
    apply,
    mapping_at,
)
from dra_driver.kubectl.migrate.node_terms import keeps_labels
from dra_driver.kubectl.migrate.operator_fields import DRA_DRIVER_VALUES, SPEC, VALUES
from dra_driver.kubectl.migrate.plugin_config import CHART_VALUES, translate_daemonset
from dra_driver.kubectl.migrate.pods import PodOptions
from dra_driver.kubectl.migrate.policies import PolicyDraft, ambiguity, classes, known_resources, memory_of

_ODD: Final = (AttributeError, TypeError, KeyError, IndexError, ValueError)
"""What a value of an unexpected type leads to: lists for mappings, numbers for texts."""
_TABLES: Final[Mapping[str, Rules]] = {
    "operator-values": VALUES,
    "plugin-values": CHART_VALUES,
    "dra-driver-values": DRA_DRIVER_VALUES,
}
_OPERATOR: Final = {
    "NVIDIADriver": "the GPU Operator goes on installing the NVIDIA driver",
    "GPUCluster": "it deploys NVIDIA's own DRA driver, which has this driver's name: one of the two on a node",
}
_OTHER_OPERATOR: Final = "an object of the GPU Operator, which goes on with it beside this driver"
_NODE: Final = "read: its labels say which configuration it has; it stays as it is"
_TOLERATIONS: Final = (
    "Kubernetes adds a toleration for the taint nvidia.com/gpu to pods with that extended resource where its admission"
    " plugin ExtendedResourceToleration is on, and to no pod with a claim: podToleration.enabled of the chart does"
)
_LABELS_KEPT: Final = (
    "labels of GPU Feature Discovery: pods that keep them stay pending on nodes where GPU Feature Discovery does"
    " not run"
)
_COMMENTS: Final = "comments of the workloads are lost, and anchors are written out"
_KEPT_COSTS: Final = (
    "Kubernetes 1.36 or the feature gate DRAExtendedResource is needed; such a pod cannot select by attributes of"
    " devices, so labels of GPU Feature Discovery stay necessary; it cannot have a share; and a taint of a broken GPU"
    " evicts it only by this driver's controller (eviction.enabled)"
)
_CLUSTER_POLICY: Final = {
    **dict.fromkeys(("apiVersion", "kind", "metadata"), "identifies the object; it is not carried to another object"),
    "status": "the GPU Operator writes it",
}


ApiObject = dict[str, Any]
"""An object or the chart's values, as they are printed."""


class MigrateOptions(Struct, frozen=True, kw_only=True):
    """``driver``: the DRA driver's name. ``keep``: leave pods as they are that can go on through extended resources.

    ``gpu_memory_mib``: the memory of one GPU that replicas share, 0 if it is not given.
    """

    driver: str = "gpu.nvidia.com"
    keep: bool = False
    gpu_memory_mib: int = 0


class Translation(Struct):
    """What came of all inputs. ``workloads`` are changed objects with the file that they came from."""

    policies: list[ApiObject] = field(default_factory=list)
    classes: list[ApiObject] = field(default_factory=list)
    templates: list[ApiObject] = field(default_factory=list)
    workloads: list[tuple[str, ApiObject]] = field(default_factory=list)
    values: ApiObject = field(default_factory=dict)
    notes: list[MigrationNote] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    hints: list[str] = field(default_factory=list)
    inputs: int = 0
    could_stay: int = 0

    @property
    def objects(self) -> list[ApiObject]:
        """All objects in the order in which they can be applied."""
        return [*self.policies, *self.classes, *self.templates, *(value for _, value in self.workloads)]


def translate(documents: Iterable[InputDocument], options: MigrateOptions, read_text: ReadText) -> Translation:
    """Translates all documents. One that cannot be read is a problem, and the others are translated."""
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
    known = known_resources(gathered, options.driver)
    pod_options = PodOptions(
        driver=options.driver, keep=options.keep, resources=known, memory=memory_of(gathered, options.gpu_memory_mib)
    )
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
        f"{document.place}: {document.label}: a field has another type than its format says ({type(error).__name__}:"
        f" {str(error)[:80]}); `kubectl apply --dry-run=server` names it"
    )


def _first(
    document: InputDocument,
    gathered: Gathered,
    found: Translation,
    later: list[tuple[str, InputDocument]],
    read_text: ReadText,
) -> None:
    """Configurations; what depends on them is put off."""
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
            found.notes += mig_parted.translate(document, gathered)
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
    hints += [told] if (told := ambiguity(gathered)) and found.templates else []
    everywhere = [draft.name for draft in drafts if draft.nodes is None and not draft.priority]
    if everywhere[1:]:
        hints.append(f"{' and '.join(everywhere)} are each for every GPU and contradict each other: keep one of them")
    unknown = sum(policies.needs_names(draft) for draft in drafts)
    if unknown:
        hints.append(
            f"{unknown} policies are for nodes with a label, which are not known: they match no node until their"
            " names are in select.nodeNames. Add `kubectl get nodes -o yaml` to the inputs, or use --from-cluster"
        )
    if any(value.get("kind") not in {"ResourceQuota", "LimitRange"} for _, value in found.workloads):
        hints += [_TOLERATIONS, _COMMENTS]
    waiting = {(note.source, note.document) for note in found.notes if keeps_labels(note.path, note.text)}
    if waiting:
        hints.append(f"{len(waiting)} {'workload keeps' if len(waiting) == 1 else 'workloads keep'} {_LABELS_KEPT}")
    if found.could_stay and not keep:
        hints.append(f"{found.could_stay} workloads could stay as they are: --keep-extended-resources. {_KEPT_COSTS}")
    elif found.could_stay:
        hints.append(f"{found.could_stay} workloads stay as they are. {_KEPT_COSTS}")
    return hints
