"""The policies in force on this node: those of a folder, or the last ones that could be applied.

A set is applied when all its files are valid and its policies do not contradict each other for the node's GPUs. Until
then the last good set stays in force, and ``problem`` says why. That set is saved in a file for the next start.
Without any good set no GPU is offered: a spelling mistake must not make a reserved GPU available to all. The caller
polls with `check`.
"""

import logging
import threading
from collections.abc import Iterable
from pathlib import Path

from dra_driver.errors import ConfigurationError, DraError, StorageError
from dra_driver.model.gpu import Snapshot
from dra_driver.model.terms import Terms, Use
from dra_driver.policy import last_good
from dra_driver.policy.folder import Print, fingerprint, read_folder
from dra_driver.policy.policy_set import PolicySet, read_set
from dra_driver.policy.resolve import closed, resolve, survey

log = logging.getLogger(__name__)


class PolicySource:
    """Policies of ``folder``; without one, default terms for every GPU. Thread-safe.

    ``last_good`` is the file for the last set that could be applied; its folder has to exist.
    """

    def __init__(self, folder: Path | None, last_good: Path, node_name: str) -> None:
        self._folder = folder
        self._file = last_good
        self._node_name = node_name
        self._lock = threading.Lock()  # guards everything below
        self._seen: Print | None = None
        self._newest: PolicySet | None = (
            None if folder else PolicySet()
        )  # of valid files, not checked for conflicts yet
        self._good: PolicySet | None = None if folder else PolicySet()
        self._saved: PolicySet | None = None
        self._unreadable: str | None = None
        self._conflict: str | None = None
        self._unsaved: str | None = None
        self._logged: str | None = None

    @property
    def problem(self) -> str | None:
        """Why the newest policies are not in force, and which are; None while they are. For logs and probes."""
        with self._lock:
            return self._problem()

    def load(self) -> None:
        """Read the last good set and the folder. Call it once, first; raises nothing for invalid content."""
        if self._folder is None:
            return
        with self._lock:
            try:
                self._good = self._saved = last_good.load(self._file)
            except DraError as error:
                log.warning("cannot use the saved policies", extra={"reason": error})
            self._read(self._folder)
            self._log_problem()

    def check(self) -> bool:
        """Read the folder again if its files changed. True when `terms` must be called again."""
        if self._folder is None:
            return False
        with self._lock:
            if self._unsaved is not None and self._good is not None:
                self._save(self._good)  # the disk may have space again
                self._log_problem()
            if fingerprint(self._folder) == self._seen:
                return False
            before = (self._newest, self._problem())
            self._read(self._folder)
            self._log_problem()
            return (self._newest, self._problem()) != before

    def terms(self, snapshot: Snapshot, uses: Iterable[Use]) -> Terms:
        """The terms of GPUs, without those that have the default terms. Forms in use stay until they are free.

        Saves the newest policies as the last good ones, on disk too, when they can be applied to this node's GPUs.
        """
        in_use = tuple(uses)
        with self._lock:
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
                if snapshot.gpus:  # without GPUs no policies conflict, which proves nothing
                    self._adopt(self._newest)
                return terms
        if self._good is None:
            return closed(snapshot, uses)
        terms, conflicts = survey(self._good.policies, snapshot, uses, self._node_name)
        if conflicts and self._conflict is None:
            self._conflict = "; ".join(conflicts[:3])
        return terms

    def _adopt(self, found: PolicySet) -> None:
        if found != self._good:
            names = ", ".join(sorted(policy.name for policy in found.policies)[:20])
            log.info("policies in force", extra={"count": len(found.policies), "policies": names})
        self._good = found
        if self._folder is None or found == self._saved:
            self._unsaved = None
            return
        self._save(found)

    def _save(self, found: PolicySet) -> None:
        try:
            last_good.save(self._file, found)
        except StorageError as error:
            self._unsaved = f"the policies in force cannot be saved for the next start: {error}"
        else:
            self._saved = found
            self._unsaved = None

    def _read(self, folder: Path) -> None:
        # Before the read, so that a change during the read is found by the next check.
        self._seen = fingerprint(folder)
        try:
            self._newest = read_set(read_folder(folder))
        except ConfigurationError as error:
            self._newest = None
            self._unreadable = str(error)
        else:
            self._unreadable = None
        self._conflict = None

    def _problem(self) -> str | None:
        reason = self._unreadable or self._conflict
        if reason is None:
            return self._unsaved
        if self._good is None:
            return f"policies cannot be used, so no GPU is offered: {reason}"
        if self._conflict is not None and self._newest == self._good:
            return f"policies contradict each other, so the GPU is not offered: {reason}"
        return f"policies cannot be used, so the previous ones stay in force: {reason}"

    def _log_problem(self) -> None:
        """Log a new problem once."""
        problem = self._problem()
        if problem != self._logged and problem is not None:
            log.warning("policy problem", extra={"reason": problem})
        self._logged = problem
