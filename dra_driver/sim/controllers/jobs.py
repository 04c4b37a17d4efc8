"""The job controller: creates pods until enough have succeeded or too many have failed.

Follows pkg/controller/job and pkg/controller/ttlafterfinished of kubernetes/kubernetes: completions, parallelism,
backoffLimit, activeDeadlineSeconds and ttlSecondsAfterFinished. Not implemented: indexes and pod failure policies;
suspended jobs are skipped.
"""

from dra_driver.sim.apiserver.jsonvalue import (
    Clock,
    Obj,
    copy_json,
    dig,
    entries,
    mapping,
    parse_time,
    rfc3339,
    utc_now,
)
from dra_driver.sim.apiserver.kinds import JOBS, PODS
from dra_driver.sim.apiserver.store import DeleteOptions, Store
from dra_driver.sim.controllers.pods import Owned, PodMaker
from dra_driver.sim.loop import ControllerLoop
from dra_driver.sim.objects import condition, is_deleted, key, set_condition, uid
from dra_driver.sim.recorder import StoreEventRecorder

MAX_STEP = 50
_FAILURES = {
    "BackoffLimitExceeded": "Job has reached the specified backoff limit",
    "DeadlineExceeded": "Job was active longer than specified deadline",
}


class JobController:
    """The controller's thread. Start it once, stop it once."""

    def __init__(self, store: Store, clock: Clock = utc_now) -> None:
        self._store, self._clock = store, clock
        self._recorder = StoreEventRecorder(store, "job-controller")
        self._pods = PodMaker(store, self._recorder)
        self._loop = ControllerLoop("job-controller", store, (JOBS, PODS), self.step)

    def start(self) -> None:
        self._loop.start()

    def stop(self) -> None:
        self._loop.stop()

    def step(self) -> float | None:
        """Reconcile all jobs once; returns the seconds until the next deadline or deletion."""
        due: list[float] = []
        for job in self._store.list(JOBS).items:
            over = "True" in (condition(job, "Complete"), condition(job, "Failed"))
            if not is_deleted(job) and over:
                due += self._expire(job)
            elif not is_deleted(job) and not dig(job, "spec", "suspend", default=False):
                self._reconcile(job)
                due += self._left(job, "activeDeadlineSeconds", dig(job, "status", "startTime"))
        return min(due, default=None)

    def _expire(self, job: Obj) -> list[float]:
        """Delete a job that has ended when its time is over; the seconds until then."""
        ended = (item for item in entries(job, "status", "conditions") if item.get("type") in ("Complete", "Failed"))
        left = self._left(job, "ttlSecondsAfterFinished", next(ended)["lastTransitionTime"])
        if left == [0.0]:
            namespace, name = key(job)
            self._store.delete(JOBS, name, namespace, DeleteOptions(uid=uid(job), propagation="Background"))
            return []
        return left

    def _left(self, job: Obj, field: str, since: object) -> list[float]:
        """The seconds until ``field`` of the spec has passed, 0.0 when it has; none without the field."""
        limit, begin = dig(job, "spec", field), parse_time(since)
        if limit is None or begin is None:
            return []
        return [max(0.0, float(limit) - (self._clock() - begin).total_seconds())]

    def _reconcile(self, job: Obj) -> None:
        owned = self._pods.owned(job)
        succeeded, failed = len(owned.in_phase("Succeeded")), len(owned.in_phase("Failed"))
        parallelism = int(dig(job, "spec", "parallelism", default=1))
        completions = int(dig(job, "spec", "completions", default=parallelism))
        ended, reason = "", "BackoffLimitExceeded"
        if succeeded >= completions:
            ended = "Complete"
        elif self._left(job, "activeDeadlineSeconds", dig(job, "status", "startTime")) == [0.0]:
            ended, reason = "Failed", "DeadlineExceeded"
        elif failed > int(dig(job, "spec", "backoffLimit", default=6)):
            ended = "Failed"
        if ended == "Failed":
            for pod in owned.active:
                self._pods.delete(job, pod)
        elif not ended:
            missing = min(parallelism, completions - succeeded) - len(owned.active)
            for _ in range(min(missing, MAX_STEP)):
                self._pods.create(job, mapping(job, "spec", "template"), _labels(job))
        self._report(job, self._pods.owned(job), ended, reason)

    def _report(self, job: Obj, owned: Owned, ended: str, reason: str) -> None:
        before, now = copy_json(mapping(job, "status")), self._clock()
        status = job.setdefault("status", {})
        status.setdefault("startTime", rfc3339(now))
        counts = {
            "active": len(owned.active),
            "ready": len(owned.ready),
            "succeeded": len(owned.in_phase("Succeeded")),
            "failed": len(owned.in_phase("Failed")),
        }
        for name, count in counts.items():
            if count or name == "ready":
                status[name] = count
            else:
                status.pop(name, None)
        if ended:
            self._end(job, ended, reason)
        if before != status:
            self._store.update_status(JOBS, job)

    def _end(self, job: Obj, ended: str, reason: str) -> None:
        now = self._clock()
        if ended == "Complete":
            reason, message = "CompletionsReached", "Reached expected number of succeeded pods"
            set_condition(job, "SuccessCriteriaMet", "True", now, reason=reason, message=message)
            job["status"]["completionTime"] = rfc3339(now)
            self._recorder.normal(job, "Completed", "Job completed")
        else:
            message = _FAILURES[reason]
            self._recorder.warning(job, reason, message)
        set_condition(job, ended, "True", now, reason=reason, message=message)


def _labels(job: Obj) -> Obj:
    name = job["metadata"]["name"]
    return {
        "batch.kubernetes.io/controller-uid": uid(job),
        "batch.kubernetes.io/job-name": name,
        "controller-uid": uid(job),
        "job-name": name,
    }
