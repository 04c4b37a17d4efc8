"""One AdmissionReview in, its answer out, as bytes. Pure, apart from time.

Source: kubernetes/kubernetes staging/src/k8s.io/api/admission/v1/types.go.
"""

import json
import re
from collections.abc import Mapping
from typing import Any, Final

from dra_driver.kubectl.lint import KnownObjects, ManifestSource, lint
from dra_driver.webhook.frames import ReviewOutcome
from dra_driver.webhook.known_policies import KnownPolicies
from dra_driver.webhook.verdict import ReviewVerdict, verdict

API_VERSION: Final = "admission.k8s.io/v1"
CHECKED: Final = frozenset(
    {("resource.k8s.io", kind) for kind in ("DeviceClass", "ResourceClaim", "ResourceClaimTemplate")}
    | {("gpu.dra-driver.io", "GpuPolicy")}
)
OBJECT: Final = "object"
_MAX_UID: Final = 128
_FORBIDDEN: Final = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")
"""Characters that JSON writes as they are, and that YAML 1.1 (4.1.1, 4.1.4) forbids or takes for the end of a line."""
_UNPROCESSABLE: Final = 422
"""As admission policies answer with the reason Invalid."""


def answer(body: bytes, known: KnownObjects, policies: KnownPolicies) -> tuple[ReviewOutcome, bytes]:
    """The answer to one request. A body that is no review gives MALFORMED and a sentence."""
    try:
        document = json.loads(body)
    except (ValueError, RecursionError) as error:
        return ReviewOutcome.MALFORMED, f"not JSON that can be read: {type(error).__name__}".encode()
    request = document.get("request") if isinstance(document, dict) else None
    uid = request.get("uid") if isinstance(request, dict) else None
    if (
        not isinstance(request, dict)
        or not isinstance(uid, str)
        or not 0 < len(uid) <= _MAX_UID
        or document.get("apiVersion") != API_VERSION
    ):
        return (
            ReviewOutcome.MALFORMED,
            f"expected an AdmissionReview of {API_VERSION} with a request and its uid".encode(),
        )
    found = judge(request, known, policies)
    outcome = (
        ReviewOutcome.REFUSED if found.message else ReviewOutcome.WARNED if found.warnings else ReviewOutcome.ALLOWED
    )
    return outcome, json.dumps(_document(uid, found)).encode()


def judge(request: Mapping[str, Any], known: KnownObjects, policies: KnownPolicies) -> ReviewVerdict:
    """The verdict on the object of a request; nothing is said of what is not new or not known."""
    written = request.get("object")
    if request.get("operation") not in {"CREATE", "UPDATE"} or not isinstance(written, dict):
        return ReviewVerdict()
    if (_text(written, "apiVersion").partition("/")[0], _text(written, "kind")) not in CHECKED:
        return ReviewVerdict()
    if request["operation"] == "UPDATE" and _spec(request.get("oldObject")) == _spec(written):
        return ReviewVerdict()  # an old wrong object must get its labels, and lose its finalizer
    source = ManifestSource(name=OBJECT, text=_as_yaml(_reduced(written, request)))
    report = lint([source, *policies.sources], known)
    findings = [finding for finding in report.findings if finding.file == OBJECT]
    return verdict(findings, attributes_known=policies.complete)


def _as_yaml(written: Mapping[str, Any]) -> str:
    """JSON that YAML reads as the same: raw characters in place of pairs of surrogates, escapes of what it forbids."""
    text = json.dumps(written, ensure_ascii=False)
    return _FORBIDDEN.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def _reduced(written: Mapping[str, Any], request: Mapping[str, Any]) -> dict[str, Any]:
    """What lint reads: managed fields can be larger than the rest, and a status is not for people to write."""
    metadata = written.get("metadata")
    given = metadata if isinstance(metadata, dict) else {}
    kept = {"name": given.get("name") or given.get("generateName") or "new"}
    namespace = given.get("namespace") or request.get("namespace")
    return {
        "apiVersion": written["apiVersion"],
        "kind": written["kind"],
        "metadata": kept | ({"namespace": namespace} if namespace else {}),
        **({"spec": written["spec"]} if "spec" in written else {}),
    }


def _document(uid: str, found: ReviewVerdict) -> dict[str, Any]:
    response: dict[str, Any] = {"uid": uid, "allowed": not found.message}
    if found.message:
        response["status"] = {"code": _UNPROCESSABLE, "reason": "Invalid", "message": found.message}
    if found.warnings:
        response["warnings"] = list(found.warnings)
    return {"apiVersion": API_VERSION, "kind": "AdmissionReview", "response": response}


def _spec(written: Any) -> Any:
    return written.get("spec") if isinstance(written, dict) else None


def _text(fields: Mapping[str, Any], name: str) -> str:
    found = fields.get(name)
    return found if isinstance(found, str) else ""
