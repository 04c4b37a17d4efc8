"""Checks manifests before they are applied: ``lint(sources, known)`` returns a `LintReport`."""

from dra_driver.kubectl.lint.finding import Finding, LintReport
from dra_driver.kubectl.lint.known import KnownObjects, known_from_catalog, known_from_cluster
from dra_driver.kubectl.lint.plain import PlainDocument, plain_documents
from dra_driver.kubectl.lint.run import lint
from dra_driver.kubectl.lint.sources import ManifestSource, collect, sources_from_objects

__all__ = [
    "Finding",
    "KnownObjects",
    "LintReport",
    "ManifestSource",
    "PlainDocument",
    "collect",
    "known_from_catalog",
    "known_from_cluster",
    "lint",
    "plain_documents",
    "sources_from_objects",
]
