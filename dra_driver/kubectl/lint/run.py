"""Run lint: read texts, check their objects, and report on files and whole objects (DRA001, DRA002, DRA005, DRA006)."""

from collections.abc import Iterable, Sequence
from typing import Final

from dra_driver.core.errors import DraError, SelectorBudgetError
from dra_driver.kubectl.lint.check_claims import ClaimChecker, PodChecker
from dra_driver.kubectl.lint.check_configs import check_policy
from dra_driver.kubectl.lint.fields import FieldChecker
from dra_driver.kubectl.lint.finding import LintReport, Reporter, text_of
from dra_driver.kubectl.lint.manifest import MAX_OBJECTS, Manifest, ManifestSource, objects_of, pod_specs
from dra_driver.kubectl.lint.reading import YamlProblem, read
from dra_driver.kubectl.lint.scope import KnownObjects, Scope
from dra_driver.scheduler.cel import selector_budget

_CHECKED: Final = frozenset({"DeviceClass", "ResourceClaim", "ResourceClaimTemplate"})
_BETA: Final = frozenset({"v1beta1", "v1beta2"})


def lint(sources: Iterable[ManifestSource], known: KnownObjects) -> LintReport:
    """Check the texts. Never raises for their content."""
    reporter = Reporter()
    manifests: list[Manifest] = []
    files = 0
    for source in sources:
        files += 1
        manifests += _manifests(source, reporter)
    scope = Scope(known, manifests)
    _duplicates(manifests, reporter)
    claims, pods = ClaimChecker(reporter, scope), PodChecker(reporter, scope)
    with selector_budget():
        for manifest in manifests:
            try:
                _check(manifest, reporter, claims, pods)
            except SelectorBudgetError as error:
                reporter.add("DRA004", manifest.spot, f"not checked: a selector is {error}", severity="warning")
            except (DraError, RecursionError) as error:
                reporter.add("DRA004", manifest.spot, f"cannot be checked: {error or 'nested too deeply'}")
        pods.rails.report()
    return LintReport(findings=reporter.in_order(), files=files, objects=len(manifests), left_out=reporter.left_out)


def _manifests(source: ManifestSource, reporter: Reporter) -> Sequence[Manifest]:
    text = text_of(source.name, source.text)
    if source.problem:
        reporter.put("DRA001", text, f"the file {source.problem}")
        return ()

    def report(problem: YamlProblem) -> None:
        rule = "DRA002" if problem.duplicate else "DRA001"
        hint = "render the Helm template first" if "{{" in source.text and not problem.duplicate else ""
        above = source.text.split("\n", problem.line - 1)[: problem.line - 1]
        position = min(len(source.text), sum(len(line) + 1 for line in above) + problem.column - 1)
        reporter.put(
            rule, text, problem.message, line=problem.line, column=problem.column, position=position, hint=hint
        )

    found: list[Manifest] = []
    for root in read(source.text, report):
        found += objects_of(text, root)
        if len(found) > MAX_OBJECTS:
            reporter.put("DRA001", text, f"more than {MAX_OBJECTS} objects; the rest is not checked")
            break
    if not found and source.named_by_user and source.text.strip() and not reporter.findings:
        reporter.put("DRA001", text, "no Kubernetes object in this file", severity="info")
    return found


def _check(manifest: Manifest, reporter: Reporter, claims: ClaimChecker, pods: PodChecker) -> None:
    if manifest.is_dra:
        if not _version(manifest, reporter) or manifest.kind not in _CHECKED:
            return
        FieldChecker(reporter).check(manifest.spot, manifest.kind)
        if manifest.kind == "DeviceClass":
            claims.device_class(manifest)
        else:
            claims.claim(manifest)
        return
    check_policy(manifest, reporter)
    for pod in pod_specs(manifest):
        pods.check(pod)


def _version(manifest: Manifest, reporter: Reporter) -> bool:
    """Report old API versions; return whether the object's shape is supported."""
    spot = manifest.spot.get("apiVersion") or manifest.spot
    version = manifest.version
    if version == "v1" or (manifest.kind not in _CHECKED and manifest.kind != "ResourceSlice"):
        return True
    if version in _BETA:
        hint = "write apiVersion: resource.k8s.io/v1"
        if version == "v1beta1" and manifest.kind != "DeviceClass":
            hint += ", and put deviceClassName, selectors, count and so on under `exactly:`"
        message = f"{manifest.api_version} is deprecated; Kubernetes serves v1 since 1.34"
        reporter.add("DRA005", spot, message, hint=hint)
        return True
    if version.startswith("v1alpha"):
        message = f"{manifest.api_version} has no {manifest.kind} since Kubernetes 1.34"
        hint = "rewrite it for resource.k8s.io/v1; alpha objects have another shape"
    else:
        message, hint = f"unknown API {manifest.api_version}", "write apiVersion: resource.k8s.io/v1"
    reporter.add("DRA005", spot, message, hint=hint, severity="error")
    return False


def _duplicates(manifests: Sequence[Manifest], reporter: Reporter) -> None:
    seen: dict[tuple[str, str, str, str], Manifest] = {}
    for manifest in manifests:
        name = manifest.spot.string("metadata", "name")
        if not manifest.is_dra and manifest.kind != "Pod":
            continue
        if not name and not manifest.spot.string("metadata", "generateName"):
            where = manifest.spot.get("metadata") or manifest.spot
            reporter.add("DRA004", where, "metadata.name is required")
            continue
        key = (manifest.group, manifest.kind, manifest.namespace, name)
        if not name or key not in seen:
            seen.setdefault(key, manifest)
            continue
        first = seen[key]
        message = f"{manifest.label} is defined twice; the first is {first.text.name}:{first.spot.node.line}"
        spot = manifest.spot.get("metadata", "name") or manifest.spot
        reporter.add("DRA006", spot, message, hint="when both are applied, the second replaces the first")
