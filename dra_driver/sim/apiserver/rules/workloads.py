"""Defaults and validation of deployments, replica sets, daemon sets, jobs and disruption budgets.

Follows kubernetes/kubernetes pkg/apis/{apps,batch}/v1/defaults.go, their validation, and the generated selector of jobs
(pkg/registry/batch/job/strategy.go).
"""

from dra_driver.sim.apiserver.jsonvalue import Obj, child, copy_json, dig, entries, mapping
from dra_driver.sim.apiserver.kind import Review, WriteRules
from dra_driver.sim.apiserver.rules.pods import default_pod_spec, pod_spec_problems
from dra_driver.sim.apiserver.selectors import object_match
from dra_driver.sim.apiserver.validation import (
    StatusCause,
    invalid,
    required,
    unsupported,
)

_CONTROLLER_UID = "batch.kubernetes.io/controller-uid"
_JOB_NAME = "batch.kubernetes.io/job-name"


def _default_template(obj: Obj) -> Obj:
    spec = child(obj, "spec")
    default_pod_spec(child(spec, "template", "spec"))
    return spec


def _default_deployment(obj: Obj) -> None:
    spec = _default_template(obj)
    spec.setdefault("replicas", 1)
    spec.setdefault("revisionHistoryLimit", 10)
    spec.setdefault("progressDeadlineSeconds", 600)
    strategy = child(spec, "strategy")
    if strategy.setdefault("type", "RollingUpdate") == "RollingUpdate":
        rolling = child(strategy, "rollingUpdate")
        rolling.setdefault("maxUnavailable", "25%")
        rolling.setdefault("maxSurge", "25%")


def _default_replica_set(obj: Obj) -> None:
    _default_template(obj).setdefault("replicas", 1)


def _default_daemon_set(obj: Obj) -> None:
    spec = _default_template(obj)
    spec.setdefault("revisionHistoryLimit", 10)
    strategy = child(spec, "updateStrategy")
    if strategy.setdefault("type", "RollingUpdate") == "RollingUpdate":
        rolling = child(strategy, "rollingUpdate")
        rolling.setdefault("maxUnavailable", 1)
        rolling.setdefault("maxSurge", 0)


def _no_daemons_yet(obj: Obj) -> None:
    names = ("currentNumberScheduled", "numberMisscheduled", "desiredNumberScheduled", "numberReady")
    obj["status"] = dict.fromkeys(names, 0)


def _default_job(obj: Obj) -> None:
    spec = _default_template(obj)
    if "completions" not in spec and "parallelism" not in spec:
        spec["completions"] = 1
    spec.setdefault("parallelism", 1)
    spec.setdefault("backoffLimit", 2**31 - 1 if "backoffLimitPerIndex" in spec else 6)
    spec.setdefault("completionMode", "NonIndexed")
    spec.setdefault("suspend", False)
    spec.setdefault("manualSelector", False)
    spec.setdefault("podReplacementPolicy", "Failed" if "podFailurePolicy" in spec else "TerminatingOrFailed")
    _default_labels(obj)


def _default_labels(obj: Obj) -> None:
    """Copy the labels of the pod template to a job without labels."""
    labels = mapping(obj, "spec", "template", "metadata", "labels")
    if labels and not mapping(obj, "metadata", "labels"):
        child(obj, "metadata")["labels"] = copy_json(labels)


def _select_own_pods(obj: Obj) -> None:
    """Generate the selector and labels that identify a job's pods."""
    spec = child(obj, "spec")
    if spec.get("manualSelector"):
        return
    if mapping(obj, "metadata", "labels") == mapping(spec, "template", "metadata", "labels"):
        obj["metadata"].pop("labels", None)  # they are the template's: the generated ones below belong to them too
    uid = obj["metadata"]["uid"]
    name = obj["metadata"].get("name", "")
    labels = child(spec, "template", "metadata", "labels")
    for key, value in (("job-name", name), (_JOB_NAME, name), ("controller-uid", uid), (_CONTROLLER_UID, uid)):
        labels.setdefault(key, value)
    child(spec, "selector", "matchLabels").setdefault(_CONTROLLER_UID, uid)
    _default_labels(obj)


def _keep_selector(obj: Obj, old: Obj, subresource: str) -> None:
    """Keep the generated selector and labels when the manifest is applied again."""
    if not subresource:
        spec, before = child(obj, "spec"), mapping(old, "spec")
        spec.setdefault("selector", copy_json(before.get("selector")))
        labels = child(spec, "template", "metadata", "labels")
        for key, value in mapping(before, "template", "metadata", "labels").items():
            if key in {"job-name", _JOB_NAME, "controller-uid", _CONTROLLER_UID}:
                labels.setdefault(key, value)


def _template_problems(obj: Obj, review: Review, *, restart: tuple[str, ...]) -> list[StatusCause]:
    if review.subresource:
        return []
    spec = mapping(obj, "spec")
    problems = _selector_problems(spec)
    template, path = mapping(spec, "template", "spec"), "spec.template.spec"
    problems += pod_spec_problems(template, path)
    if template.get("restartPolicy") not in restart:
        where = f"{path}.restartPolicy"
        if restart == ("Always",):
            problems.append(unsupported(where, template.get("restartPolicy", ""), restart))
        else:
            problems.append(required(where, 'valid values: "OnFailure", "Never"'))
    for field in ("replicas", "parallelism", "completions"):
        if isinstance(spec.get(field), int) and spec[field] < 0:
            problems.append(invalid(f"spec.{field}", spec[field], "must be greater than or equal to 0"))
    if review.old is not None and spec.get("selector") != dig(review.old, "spec", "selector"):
        problems.append(invalid("spec.selector", spec.get("selector"), "field is immutable"))
    return problems


def _selector_problems(spec: Obj) -> list[StatusCause]:
    selector = spec.get("selector")
    if selector is None:
        return [required("spec.selector")]
    if not mapping(selector, "matchLabels") and not entries(selector, "matchExpressions"):
        return [invalid("spec.selector", selector, "empty selector is invalid for deployment")]
    labels = mapping(spec, "template", "metadata", "labels")
    if not object_match(selector)({"metadata": {"labels": labels}}):
        return [invalid("spec.template.metadata.labels", labels, "`selector` does not match template `labels`")]
    return []


def _validate_always(obj: Obj, review: Review) -> list[StatusCause]:
    return _template_problems(obj, review, restart=("Always",))


def _validate_job(obj: Obj, review: Review) -> list[StatusCause]:
    problems = _template_problems(obj, review, restart=("OnFailure", "Never"))
    if review.old is not None and not review.subresource:
        template, before = dig(obj, "spec", "template"), dig(review.old, "spec", "template")
        if template != before and not dig(obj, "spec", "suspend"):
            problems.append(invalid("spec.template", template, "field is immutable"))
    return problems


DEPLOYMENT_RULES = WriteRules(default=_default_deployment, validate=_validate_always)
REPLICA_SET_RULES = WriteRules(default=_default_replica_set, validate=_validate_always)
DAEMON_SET_RULES = WriteRules(default=_default_daemon_set, prepare_create=_no_daemons_yet, validate=_validate_always)
JOB_RULES = WriteRules(
    default=_default_job, prepare_create=_select_own_pods, prepare_update=_keep_selector, validate=_validate_job
)


def _validate_budget(obj: Obj, _review: Review) -> list[StatusCause]:
    """kubernetes/kubernetes pkg/apis/policy/validation: one of the two limits, not both."""
    spec = mapping(obj, "spec")
    if "minAvailable" in spec and "maxUnavailable" in spec:
        return [invalid("spec", spec, "minAvailable and maxUnavailable cannot be both set")]
    return []


BUDGET_RULES = WriteRules(validate=_validate_budget)
