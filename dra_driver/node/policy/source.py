"""Keep the policies in force on this node, from a directory and the API server, and compute the state of each.

A set of files and objects is applied when all of it is valid and nothing conflicts for the node's GPUs. Until then the
last good set, which is saved for the next start, stays in force. Without a good set no GPU is published: a spelling
mistake must not make a reserved GPU available to all. The caller polls with `check`.

While the API server is unavailable, the objects of the last good set count. A start without a saved set waits for
the first answer; an answer that the kind is not served counts as no objects only then.
"""

import logging
import threading
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from msgspec import Struct

from dra_driver.config.policy import GpuPolicy
from dra_driver.core.errors import ConfigurationError, DraError, DriverUnavailableError, StorageError
from dra_driver.core.model.gpu import Gpu, Snapshot
from dra_driver.core.model.gpu_node import NodePolicy, PolicyOrigin, PolicyState
from dra_driver.core.model.ids import GpuUuid
from dra_driver.core.model.terms import Terms, Use, terms_of
from dra_driver.node.policy import policy_set
from dra_driver.node.policy.folder import Print, fingerprint, read_folder
from dra_driver.node.policy.resolve import agree, closed, matches, resolve, survey

log = logging.getLogger(__name__)

_NOTHING = policy_set.PolicySet()


class PolicySets(Struct, frozen=True, kw_only=True):
    """The newest valid set (None without one), the one in force, and why the newest is not. ``refused`` has problems of
    objects by name."""

    newest: policy_set.PolicySet | None
    in_force: policy_set.PolicySet | None
    problem: str | None
    refused: Mapping[str, str]


def policy_outcomes(
    found: PolicySets, snapshot: Snapshot, terms: Terms, node_name: str, claims: Mapping[GpuUuid, Sequence[str]]
) -> tuple[NodePolicy, ...]:
    """One entry for each policy that selects a GPU of the node or is refused by name, in order of names.

    ``terms`` are those in force; ``claims`` are names of the claims of each GPU. While the newest set cannot be
    applied, the last good one decides which policy is in force: a policy that is equal in both stays in force, although
    it may conflict with a newer one, and so does a deleted one.
    """
    good = found.in_force or policy_set.PolicySet()
    newest = found.newest if found.newest is not None else good
    named = {policy.name for policy in newest.policies}
    generations = {name: value for name, value in (good.generations or {}).items() if name not in named}
    generations |= newest.generations or {}
    newest_ranks = _ranks(newest, snapshot, node_name)
    good_ranks = newest_ranks if newest == good else _ranks(good, snapshot, node_name)

    def entry(policy: GpuPolicy) -> NodePolicy:
        selected = [gpu for gpu in snapshot.gpus if matches(policy.select, gpu, node_name)]
        conflicting = [gpu for gpu in selected if newest_ranks[gpu.uuid].has(policy, agreed=False)]
        is_applied = found.in_force is not None and policy in found.in_force.policies
        applied = [gpu for gpu in selected if is_applied and good_ranks[gpu.uuid].has(policy, agreed=True)]
        waiting = [gpu for gpu in applied if terms_of(terms, gpu.uuid).waiting is not None]
        state, message = PolicyState.OUTRANKED, None
        if conflicting:
            state, message = PolicyState.CONFLICTING, found.problem
        elif not is_applied:
            state, message = PolicyState.REFUSED, found.problem
        elif waiting:
            state, message = PolicyState.WAITING, terms_of(terms, waiting[0].uuid).waiting
        elif applied:
            state = PolicyState.IN_FORCE
        others = {name for gpu in conflicting for name in newest_ranks[gpu.uuid].first} - {policy.name}
        return NodePolicy(
            name=policy.name,
            origin=PolicyOrigin.OBJECT if policy.name in generations else PolicyOrigin.FILE,
            state=state,
            generation=generations.get(policy.name),
            gpus=_names(selected),
            in_force=_names(gpu for gpu in applied if gpu not in waiting),
            waiting=_names(waiting),
            conflicting=_names(conflicting),
            conflicts_with=tuple(sorted(others)),
            waiting_for=tuple(dict.fromkeys(claim for gpu in waiting for claim in claims.get(gpu.uuid, ()))),
            message=message,
        )

    policies = {policy.name: policy for policy in (*good.policies, *newest.policies)}
    shown = [each for policy in policies.values() if (each := entry(policy)).gpus and each.name not in found.refused]
    refused = [
        NodePolicy(name=name, origin=PolicyOrigin.OBJECT, state=PolicyState.REFUSED, message=reason)
        for name, reason in found.refused.items()
    ]
    return tuple(sorted([*shown, *refused], key=lambda each: each.name))


class _Rank(Struct, frozen=True):
    first: tuple[str, ...]
    agree: bool

    def has(self, policy: GpuPolicy, *, agreed: bool) -> bool:
        return policy.name in self.first and self.agree is agreed


def _ranks(policies: policy_set.PolicySet, snapshot: Snapshot, node_name: str) -> Mapping[GpuUuid, _Rank]:
    ranks = {}
    for gpu in snapshot.gpus:
        matching = [policy for policy in policies.policies if matches(policy.select, gpu, node_name)]
        highest = max((policy.priority for policy in matching), default=0)
        first = [policy for policy in matching if policy.priority == highest]
        ranks[gpu.uuid] = _Rank(tuple(sorted(policy.name for policy in first)), agree(first, gpu))
    return ranks


def _names(gpus: Iterable[Gpu]) -> tuple[str, ...]:
    return tuple(gpu.device_name for gpu in gpus)


class Objects(Protocol):
    """GpuPolicy objects as ``node/process/policy_watch.py`` has them: None before the first answer."""

    @property
    def problem(self) -> str | None: ...
    @property
    def is_absent(self) -> bool: ...
    def current(self) -> tuple[policy_set.PolicyObject, ...] | None: ...


class PolicySource:
    """Policies of ``folder`` and ``objects``; without both, default terms for every GPU. Thread-safe.

    ``last_good`` is the file for the last good set; its directory has to exist.
    """

    def __init__(self, folder: Path | None, last_good: Path, node_name: str, objects: Objects | None = None) -> None:
        self._folder, self._objects = folder, objects
        self._file = last_good
        self._node_name = node_name
        has_none = folder is None and objects is None
        self._lock = threading.Lock()  # guards everything below
        self._seen: Print | None = None
        self._seen_objects: tuple[object, bool] = (None, False)
        self._newest: policy_set.PolicySet | None = (
            _NOTHING if has_none else None
        )  # valid, not checked for conflicts yet
        self._good: policy_set.PolicySet | None = _NOTHING if has_none else None
        self._saved: policy_set.PolicySet | None = None
        self._is_waiting = objects is not None  # for the first answer of the API server, with nothing to go by
        self._unreadable: str | None = None
        self._refused: Mapping[str, str] = {}  # why, by names of objects
        self._conflict: str | None = None
        self._unsaved: str | None = None
        self._logged: str | None = None

    @property
    def problem(self) -> str | None:
        """The reason why the newest policies are not in force, and which are; None while they are."""
        with self._lock:
            return self._problem()

    @property
    def remark(self) -> str | None:
        """The reason why objects of the API server may be outdated; None while current, or if there never were any."""
        problem = self._objects.problem if self._objects is not None else None
        if problem is None or self._objects is None:
            return None
        with self._lock:
            known = self._newest or self._good
        count = len(known.generations or ()) if known is not None else 0
        if self._objects.is_absent and not count and self._objects.current() is None:
            return None  # no CustomResourceDefinition, so no policies
        return f"GpuPolicy objects may be outdated, the last known {count} stay in force: {problem}"

    @property
    def is_known(self) -> bool:
        """Return whether the policies were read, from the API server or the last good set."""
        with self._lock:
            return not self._is_waiting

    @property
    def sets(self) -> PolicySets:
        """The sets of policies for `policy_outcomes`. Equal ones are the same objects."""
        with self._lock:
            return PolicySets(newest=self._newest, in_force=self._good, problem=self._problem(), refused=self._refused)

    def load(self) -> None:
        """Read the last good set and the directory. Call it once, first; raises nothing for invalid content."""
        if self._folder is None and self._objects is None:
            return
        with self._lock:
            try:
                self._good = self._saved = policy_set.load_set(self._file)
            except DraError as error:
                log.warning("cannot use the saved policies", extra={"reason": error})
            self._read()
            self._log_problem()

    def check(self) -> bool:
        """Read the policies again if files or objects changed. Returns whether `terms` must be called again."""
        if self._folder is None and self._objects is None:
            return False
        with self._lock:
            if self._unsaved is not None and self._good is not None:
                self._save(self._good)  # the disk may have space again
                self._log_problem()
            folder = fingerprint(self._folder) if self._folder is not None else None
            if folder == self._seen and self._object_state() == self._seen_objects:
                return False
            before = (self._newest, self._is_waiting, self._problem())
            self._read()
            self._log_problem()
            return (self._newest, self._is_waiting, self._problem()) != before

    def terms(self, snapshot: Snapshot, uses: Iterable[Use]) -> Terms:
        """The terms of GPUs, except default terms. Forms in use stay until they are free.

        Saves the newest policies as the last good ones if they can be applied to this node's GPUs. Raises
        DriverUnavailableError while the policies are unknown.
        """
        in_use = tuple(uses)
        with self._lock:
            if self._is_waiting:
                raise DriverUnavailableError(
                    self._problem() or "the policies have not been read yet", reason="PoliciesUnknown"
                )
            found = self._terms(snapshot, in_use)
            self._log_problem()
            return found

    def _terms(self, snapshot: Snapshot, uses: tuple[Use, ...]) -> Terms:
        self._conflict = None
        if self._newest is not None:
            try:
                terms = resolve(self._newest.policies, snapshot, uses, self._node_name)
            except ConfigurationError as error:
                self._conflict = str(error)
            else:
                if snapshot.gpus:  # without GPUs, a set without conflicts proves nothing
                    self._adopt(self._newest)
                return terms
        if self._good is None:
            return closed(snapshot, uses)
        terms, conflicts = survey(self._good.policies, snapshot, uses, self._node_name)
        if conflicts and self._conflict is None:
            self._conflict = "; ".join(conflicts[:3])
        return terms

    def _adopt(self, found: policy_set.PolicySet) -> None:
        if found != self._good:
            names = ", ".join(sorted(policy.name for policy in found.policies)[:20])
            log.info("policies in force", extra={"count": len(found.policies), "policies": names})
        self._good = found
        if (self._folder is None and self._objects is None) or found == self._saved:
            self._unsaved = None
            return
        self._save(found)

    def _save(self, found: policy_set.PolicySet) -> None:
        try:
            policy_set.save_set(self._file, found)
        except StorageError as error:
            self._unsaved = f"the policies in force cannot be saved for the next start: {error}"
        else:
            self._saved = found
            self._unsaved = None

    def _object_state(self) -> tuple[object, bool]:
        """Equal while the objects did not change."""
        return (self._objects.current(), self._objects.is_absent) if self._objects is not None else (None, False)

    def _read(self) -> None:
        # Before the read, so that a change during the read is found by the next check.
        self._seen = fingerprint(self._folder) if self._folder is not None else None
        self._seen_objects = self._object_state()
        self._refused = {}
        objects = self._known_objects()
        self._is_waiting = self._objects is not None and objects is None and self._good is None
        try:
            files = policy_set.read_set(read_folder(self._folder)) if self._folder is not None else _NOTHING
            self._newest = (
                files if self._objects is None else policy_set.merge(files, objects) if objects is not None else None
            )
        except ConfigurationError as error:
            self._newest = None
            self._unreadable = str(error)
            if isinstance(error, policy_set.RefusedSetError):
                self._refused = error.reasons
        else:
            self._unreadable = None
        self._conflict = None

    def _known_objects(self) -> list[policy_set.ReadObject] | None:
        """None while objects are unknown."""
        listed, is_absent = self._seen_objects
        if isinstance(listed, tuple):
            return policy_set.read_objects(listed)
        if self._good is not None and self._good.generations is not None:
            named = {item["metadata"]["name"]: item for item in self._good.written}
            return [
                policy_set.ReadObject(name=name, generation=generation, written=named[name])
                for name, generation in self._good.generations.items()
                if name in named
            ]
        return [] if is_absent else None

    def _problem(self) -> str | None:
        reason = self._unreadable or self._conflict
        if self._is_waiting:
            reason = (self._objects.problem if self._objects is not None else None) or "no answer yet"
            return f"no GPUs published: GpuPolicy objects not listed yet ({reason})"
        if reason is None:
            return self._unsaved
        if self._good is None:
            return f"no GPUs published: cannot use policies: {reason}"
        if self._conflict is not None and self._newest == self._good:
            return f"GPU not published: policies conflict: {reason}"
        return f"cannot use the new policies, so the previous ones stay in force: {reason}"

    def _log_problem(self) -> None:
        problem = self._problem()
        if self._is_waiting and self._objects is not None and self._objects.problem is None:
            return  # the first request is still running
        if problem != self._logged and problem is not None:
            log.warning("policy problem", extra={"reason": problem})
        self._logged = problem
