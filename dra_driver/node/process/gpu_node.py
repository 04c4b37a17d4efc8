"""Create the GpuNode of this node and write its status when it changes.

At the start it reads the object and writes only the difference, so that the restart of a fleet writes nothing.
Kubernetes' garbage collector deletes an object whose owner is an earlier Node of this name. Its deletion is awaited,
then the object is created again. Where the kind is not served, the node works without it.
"""

import logging
import random
import re
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from dra_driver import __version__
from dra_driver.config.policy import API_VERSION
from dra_driver.config.settings import NodeSettings
from dra_driver.config.status import NODE_KIND, node_status, node_status_of
from dra_driver.core import errors
from dra_driver.core.backoff import Backoff
from dra_driver.core.model.claim import ClaimRef
from dra_driver.core.model.gpu import Gpu, Snapshot
from dra_driver.core.model.gpu_node import (
    NO_USAGE,
    GpuNodeStatus,
    HealthWord,
    NodeGpu,
    NodePolicy,
    NodeProblem,
    NodeTaint,
    PublishedForm,
    ReportedUsage,
)
from dra_driver.core.model.health import HealthCause, HealthCondition, Severity
from dra_driver.core.model.ids import GpuUuid
from dra_driver.core.model.terms import Form, GpuTerms, Terms, Use, terms_of
from dra_driver.core.quantity import Quantity
from dra_driver.core.telemetry import metrics
from dra_driver.core.time import rfc3339
from dra_driver.core.worker import Worker
from dra_driver.kube import paths
from dra_driver.kube.own_node import OwnNodeWatch
from dra_driver.kube.rest import RestClient
from dra_driver.node.claims import Journal
from dra_driver.node.policy import PolicySource, policy_outcomes
from dra_driver.node.process.health_service import HealthService
from dra_driver.node.process.inventory_publisher import InventoryPublisher
from dra_driver.node.process.node_events import Tell
from dra_driver.node.process.usage_report import ClaimNotice, UsageReport

log = logging.getLogger(__name__)

THREAD_NAME: Final = "gpu-node"
MANAGER: Final = "gpu.dra-driver.io-node"
PAUSE_S: Final = 2.0
LONGEST_PAUSE_S: Final = 60.0
RETRY_S: Final = 30.0
ABSENT_S: Final = (10.0, 300.0)
"""First and longest wait while the kind is not served or access is forbidden, and for the object's deletion."""
CHECK_S: Final = 3600.0
STEADY_S: Final = 600.0
_NUMBERS: Final = re.compile(r"\d[\d., ]*")


class GpuNodeKeeper:
    """``worker`` runs it; wake it when something changed that the GpuNode shows.

    Writes come at least `PAUSE_S` apart, and further apart while changes continue; messages that differ only in numbers
    are written after `STEADY_S`. ``collect`` returns the status, None while it is unknown, and can raise DraError.
    ``owner`` returns the UID of the Node object, "" while it is unknown. ``warn`` records an event on the Node.
    """

    def __init__(
        self,
        rest: RestClient,
        node_name: str,
        collect: Callable[[], GpuNodeStatus | None],
        owner: Callable[[], str],
        warn: Callable[[str], None],
        *,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._rest, self._name, self._collect, self._owner, self._warn = rest, node_name, collect, owner, warn
        self._clock, self._now = clock, now
        self._written: GpuNodeStatus | None = None  # None: read the stored object first
        self._written_at = float("-inf")
        self._pause_s = PAUSE_S
        self._later = Backoff(first_s=ABSENT_S[0], longest_s=ABSENT_S[1], jitter=0.0)
        self._is_left_behind = False  # the stored object belongs to an earlier Node
        self.problem: str | None = None
        """The reason why the GpuNode is not current; None while it is, and where the kind is not served."""
        self._uid = ""  # of the Node, at the last step
        self.worker = Worker(
            THREAD_NAME, self._turn, on_error=partial(metrics.internal_error, "gpu-node"), after_error_s=RETRY_S
        )

    def step(self) -> float:
        """Write changes; return the seconds until the next step."""
        try:
            wanted = self._collect()
            if wanted is None:
                return RETRY_S
            wait_s = self._settle(wanted)
        except errors.NotFoundError as error:
            log.info("API server does not serve GpuNodes; continuing without", extra={"reason": error})
            self.problem, self._written = None, None
            return self._later.next_s()
        except (errors.ConflictError, errors.AlreadyExistsError) as error:
            log.info("GpuNode no longer exists; creating it again", extra={"reason": error})
            return PAUSE_S
        except (errors.ForbiddenError, errors.InvalidObjectError) as error:
            self._fail(f"cannot write the GpuNode: {error}; see docs/operations.md for the required permissions")
            return self._later.next_s()
        except errors.DraError as error:
            log.info("cannot write the GpuNode; will retry", extra={"reason": error})
            return RETRY_S
        self.problem = None
        if self._is_left_behind:
            return self._later.next_s()
        self._later.reset()
        return wait_s

    def check(self) -> None:
        """Compare with the stored object at the next step. For the thread that calls ``step``."""
        self._written = None

    def _settle(self, wanted: GpuNodeStatus) -> float:
        former, self._uid = self._uid, self._owner()
        if former not in ("", self._uid):  # deleting the Node deletes its GpuNode
            self.check()
        if self._written is None:
            self._written = self._stored()
        cut = node_status_of({"status": node_status(wanted, "")})  # long texts and lists are stored in part
        if cut is None or cut == self._written:
            return CHECK_S
        steady_s = STEADY_S - (self._clock() - self._written_at)
        if steady_s > 0 and self._written is not None and _steady(cut) == _steady(self._written):
            return steady_s
        self._write(wanted)
        self._written = cut
        return CHECK_S

    def pause_s(self) -> float:
        """Seconds until the next write: more while one change follows another."""
        since = self._clock() - self._written_at
        if since > LONGEST_PAUSE_S:
            self._pause_s = PAUSE_S
        return max(0.0, self._pause_s - since)

    def _stored(self) -> GpuNodeStatus | None:
        try:
            found = self._rest.get(paths.gpu_nodes(self._name))
        except errors.NotFoundError:
            self._is_left_behind = False
            return None  # the object or the kind is missing: creating it shows which
        metadata = found.get("metadata")
        owners = metadata.get("ownerReferences") if isinstance(metadata, dict) else None
        uids = [each.get("uid") for each in owners if isinstance(each, dict)] if isinstance(owners, list) else []
        self._is_left_behind = bool(uids and (uid := self._owner())) and uid not in uids
        return node_status_of(found)

    def _write(self, wanted: GpuNodeStatus) -> None:
        at = rfc3339(self._now())
        body = {
            "apiVersion": API_VERSION,
            "kind": NODE_KIND,
            "metadata": {"name": self._name},
            "status": node_status(wanted, at),
        }
        path = f"{paths.gpu_nodes(self._name)}/status"
        try:
            self._rest.apply(path, body, MANAGER)
        except errors.NotFoundError:
            self._create()
            self._rest.apply(path, body, MANAGER)
        self._written_at = self._clock()
        self._pause_s = min(LONGEST_PAUSE_S, self._pause_s * 2)

    def _create(self) -> None:
        uid = self._owner()
        if not uid:
            raise errors.KubernetesApiError(
                f"cannot create the GpuNode: its owner, Node {self._name}, has not been read yet"
            )
        owner = {"apiVersion": "v1", "kind": "Node", "name": self._name, "uid": uid}
        metadata = {"name": self._name, "ownerReferences": [owner]}
        self._rest.create(paths.gpu_nodes(), {"apiVersion": API_VERSION, "kind": NODE_KIND, "metadata": metadata})

    def _fail(self, problem: str) -> None:
        if problem != self.problem:
            log.warning("cannot write the GpuNode", extra={"reason": problem})
            self._warn(problem)
        self.problem = problem

    def _turn(self) -> float:
        if not self.worker.was_woken:
            self.check()
        if self.worker.pause(self.pause_s()):  # changes at the same time are written together
            return 0.0
        return self.step() * random.uniform(0.75, 1.25)  # noqa: S311 - spreads load, keeps no secret


def _steady(status: GpuNodeStatus) -> GpuNodeStatus:
    return replace(
        status,
        gpus=tuple(replace(each, message=_NUMBERS.sub("#", each.message or "")) for each in status.gpus),
        problems=tuple(replace(each, message=_NUMBERS.sub("#", each.message)) for each in status.problems),
    )


_FORMS = {Form.PARTITION: PublishedForm.PARTITIONS, Form.SHARE: PublishedForm.SHARED, Form.WHOLE: PublishedForm.WHOLE}


class NodeFacts(Struct, frozen=True, kw_only=True):
    """Facts of the node process at one moment. ``terms`` are the published ones; ``missing`` are GPUs of the snapshot
    that are no longer found."""

    snapshot: Snapshot
    terms: Terms
    uses: tuple[Use, ...] = ()
    conditions: tuple[HealthCondition, ...] = ()
    missing: frozenset[GpuUuid] = frozenset()
    watches_health: bool = True
    policies: tuple[NodePolicy, ...] = ()
    problems: tuple[NodeProblem, ...] = ()
    usage: ReportedUsage = NO_USAGE
    toolkit_version: str | None = None
    container_runtime_version: str | None = None
    kernel_version: str | None = None


def status_of(facts: NodeFacts, driver_name: str) -> GpuNodeStatus:
    cuda = facts.snapshot.cuda_driver_version
    sick = {each.gpu_uuid for each in facts.conditions if each.severity is not Severity.COUNTED}
    left_out = [
        NodeProblem(reason="GpuLeftOut", message=f"GPU {each.label} cannot be used: {each.reason}")
        for each in facts.snapshot.left_out
        if each.label not in sick  # its condition has the message
    ]
    return GpuNodeStatus(
        driver_name=driver_name,
        node_process_version=__version__,
        driver_version=facts.snapshot.driver_version,
        nvml_version=facts.snapshot.nvml_version,
        cuda_version=f"{cuda[0]}.{cuda[1]}" if cuda is not None else None,
        toolkit_version=facts.toolkit_version,
        container_runtime_version=facts.container_runtime_version,
        kernel_version=facts.kernel_version,
        gpus=tuple(_gpu(gpu, facts) for gpu in facts.snapshot.gpus),
        policies=facts.policies,
        problems=(*facts.problems, *left_out),
        usage=facts.usage,
    )


def _gpu(gpu: Gpu, facts: NodeFacts) -> NodeGpu:
    terms = terms_of(facts.terms, gpu.uuid)
    sick = [each for each in facts.conditions if each.gpu_uuid == gpu.uuid and each.severity is not Severity.COUNTED]
    bad = [each for each in sick if each.cause is not HealthCause.UNMONITORED]
    causes = tuple(dict.fromkeys(each.cause.value for each in bad or sick))
    messages = list(dict.fromkeys(each.message for each in bad or sick))
    health = HealthWord.UNHEALTHY if bad else HealthWord.UNKNOWN if sick else HealthWord.HEALTHY
    if not facts.watches_health:
        health = HealthWord.UNKNOWN
    if gpu.uuid in facts.missing and not bad:
        health, causes = HealthWord.UNHEALTHY, (HealthCause.LOST.value,)
        messages = ["the GPU is no longer found on its node"]
    return NodeGpu(
        name=gpu.device_name,
        uuid=gpu.uuid,
        product_name=gpu.product_name,
        memory=str(Quantity.from_bytes(gpu.memory_bytes)) if gpu.memory_bytes is not None else None,
        offered_as=offered_forms(gpu, terms),
        used_as=used_form(use for use in facts.uses if use.gpu_uuid == gpu.uuid),
        policy=terms.policy,
        waiting=terms.waiting,
        health=health,
        causes=causes,
        message="; ".join(messages) or None,
        taints=tuple(
            NodeTaint(key=taint.key, value=taint.value, effect=taint.effect)
            for taint in (*terms.taints, *terms.condition_taints, *terms.whole_taints)
        ),
    )


def offered_forms(gpu: Gpu, terms: GpuTerms) -> tuple[PublishedForm, ...]:
    """The forms in which new claims can have the GPU; partitions not while MIG mode is off and enabling it takes a
    reset."""
    if not terms.offered:
        return ()
    forms = [PublishedForm.SHARED if terms.sharing is not None else PublishedForm.WHOLE] if terms.whole else []
    allowed = terms.profiles is None or any(profile.profile_id in terms.profiles for profile in gpu.mig_profiles)
    if gpu.mig_profiles and allowed and (gpu.mig_enabled or gpu.mig_resetless):
        forms.append(PublishedForm.PARTITIONS)
    return tuple(forms)


def used_form(uses: Iterable[Use]) -> PublishedForm:
    """The form that claims have of a GPU; whole while claims have several forms, as during a change."""
    found = {use.form for use in uses}
    return next((word for form, word in reversed(_FORMS.items()) if form in found), PublishedForm.FREE)


def claims_by_gpu(holdings: Iterable[tuple[GpuUuid, ClaimRef]]) -> Mapping[GpuUuid, list[str]]:
    """Claims as ``namespace/name`` by their GPU, each once and in order."""
    found: dict[GpuUuid, list[str]] = {}
    for gpu, claim in sorted({(gpu, f"{claim.namespace}/{claim.name}") for gpu, claim in holdings}):
        found.setdefault(gpu, []).append(claim)
    return found


EVENT: Final = "GpuNodeNotWritten"


class GpuNodeService:
    """The GpuNode of this node. ``not_ready`` and ``remarks`` return the messages of the HTTP endpoint."""

    def __init__(
        self,
        settings: NodeSettings,
        rest: RestClient,
        own_node: OwnNodeWatch,
        tell: Tell,
        *,
        published: InventoryPublisher,
        journal: Journal,
        health: HealthService | None,
        policies: PolicySource,
        hook_version: Callable[[], str | None],
        not_ready: Callable[[], list[str]],
        remarks: Callable[[], list[str]],
        notify: Callable[[ClaimNotice], None] | None = None,
    ) -> None:
        self._settings, self._own_node, self._published, self._journal = settings, own_node, published, journal
        self._health, self._policies, self._hook_version = health, policies, hook_version
        self._not_ready, self._remarks = not_ready, remarks
        self._usage = UsageReport(settings, journal, tell, notify=notify) if settings.usage else None
        self._seen: tuple[object, ...] = ()
        self._messages: tuple[list[str], list[str], str | None] = ([], [], None)
        self._claims_changed = True
        self.keeper = GpuNodeKeeper(
            rest, settings.node_name, self._collect, self._owner, partial(tell, "Warning", EVENT)
        )

    def claims_changed(self) -> None:
        self._claims_changed = True

    def look(self) -> None:
        """Wake the writer after a change. Costs microseconds while nothing changed; called every few seconds."""
        known = self._published.known
        if known is None:
            return
        if self._usage is not None:
            self._usage.look(*known)
        reported = self._usage.reported if self._usage is not None else NO_USAGE
        sets = self._policies.sets
        conditions = self._health.conditions if self._health is not None else ()
        seen = (*known, conditions, self._own_node.current(), sets.newest, sets.in_force, reported)
        is_same = len(seen) == len(self._seen) and all(a is b for a, b in zip(seen, self._seen, strict=True))
        messages = (self._not_ready(), self._remarks(), self._hook_version())
        if is_same and not self._claims_changed and messages == self._messages:
            return
        self._seen, self._messages, self._claims_changed = seen, messages, False
        self.keeper.worker.wake()

    def _owner(self) -> str:
        node = self._own_node.current()
        return node.uid if node is not None else ""

    def _collect(self) -> GpuNodeStatus | None:
        known, node = self._published.known, self._own_node.current()
        if known is None:
            return None
        snapshot, terms = known
        entries = self._journal.entries()
        holdings = [(each.gpu_uuid, entry.ref) for entry in entries for each in entry.devices if not each.admin_access]
        problems = [NodeProblem(reason="NotReady", message=text) for text in self._not_ready()]
        problems += [NodeProblem(reason="Degraded", message=text) for text in self._remarks()]
        if self._usage is not None and self._usage.problem is not None:
            problems.append(NodeProblem(reason="UsageFindings", message=self._usage.problem))
        facts = NodeFacts(
            snapshot=snapshot,
            terms=terms,
            uses=self._journal.uses(),
            conditions=self._health.conditions if self._health is not None else (),
            missing=self._health.missing if self._health is not None else frozenset(),
            watches_health=self._health is not None,
            policies=policy_outcomes(
                self._policies.sets, snapshot, terms, self._settings.node_name, claims_by_gpu(holdings)
            ),
            problems=tuple(problems),
            usage=self._usage.reported if self._usage is not None else NO_USAGE,
            toolkit_version=self._hook_version(),
            container_runtime_version=(node.runtime or None) if node is not None else None,
            kernel_version=(node.kernel or None) if node is not None else None,
        )
        return status_of(facts, self._settings.driver_name)
