"""The job controller: creates pods until enough have succeeded or too many have failed.

Follows pkg/controller/job of kubernetes/kubernetes: completions, parallelism and backoffLimit. Not implemented:
indexes, deadlines and pod failure policies; suspended jobs are skipped.
"""

from dra_driver.sim.apiserver.jsonvalue import Obj, copy_json, dig, mapping, rfc3339, utc_now
from dra_driver.sim.apiserver.kinds import JOBS, PODS
from dra_driver.sim.apiserver.store import Store
from dra_driver.sim.controllers.pods import Owned, PodMaker
from dra_driver.sim.loop import ControllerLoop
from dra_driver.sim.objects import condition, is_deleted, set_condition, uid
from dra_driver.sim.recorder import StoreEventRecorder

MAX_STEP = 50


class JobController:
    """The controller's thread. Start it once, stop it once."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._recorder = StoreEventRecorder(store, "job-controller")
        self._pods = PodMaker(store, self._recorder)
        self._loop = ControllerLoop("job-controller", store, (JOBS, PODS), self.step)

    def start(self) -> None:
        self._loop.start()

    def stop(self) -> None:
        self._loop.stop()

    def step(self) -> float | None:
        """Reconcile all unfinished jobs once."""
        for job in self._store.list(JOBS).items:
            over = "True" in (condition(job, "Complete"), condition(job, "Failed"))
            if not is_deleted(job) and not over and not dig(job, "spec", "suspend", default=False):
                self._reconcile(job)
        return None

    def _reconcile(self, job: Obj) -> None:
        owned = self._pods.owned(job)
        succeeded, failed = len(owned.in_phase("Succeeded")), len(owned.in_phase("Failed"))
        parallelism = int(dig(job, "spec", "parallelism", default=1))
        completions = int(dig(job, "spec", "completions", default=parallelism))
        ended = ""
        if succeeded >= completions:
            ended = "Complete"
        elif failed > int(dig(job, "spec", "backoffLimit", default=6)):
            ended = "Failed"
            for pod in owned.active:
                self._pods.delete(job, pod)
        else:
            missing = min(parallelism, completions - succeeded) - len(owned.active)
            for _ in range(min(missing, MAX_STEP)):
                self._pods.create(job, mapping(job, "spec", "template"), _labels(job))
        self._report(job, self._pods.owned(job), ended)

    def _report(self, job: Obj, owned: Owned, ended: str) -> None:
        before, now = copy_json(mapping(job, "status")), utc_now()
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
            self._end(job, ended)
        if before != status:
            self._store.update_status(JOBS, job)

    def _end(self, job: Obj, ended: str) -> None:
        now = utc_now()
        if ended == "Complete":
            reason, message = "CompletionsReached", "Reached expected number of succeeded pods"
            set_condition(job, "SuccessCriteriaMet", "True", now, reason=reason, message=message)
            job["status"]["completionTime"] = rfc3339(now)
            self._recorder.normal(job, "Completed", "Job completed")
        else:
            reason, message = "BackoffLimitExceeded", "Job has reached the specified backoff limit"
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
