"""Check manifests before they are applied: ``lint(sources, known)`` returns a `LintReport`."""

from dra_driver.kubectl.lint.finding import Finding, LintReport
from dra_driver.kubectl.lint.manifest import ManifestSource, collect, plain_documents
from dra_driver.kubectl.lint.run import lint
from dra_driver.kubectl.lint.scope import KnownObjects, known_from_catalog, known_from_cluster
