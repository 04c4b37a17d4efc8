"""Checks of manifests before they are applied: ``lint(sources, known)`` gives a `LintReport`."""

from dra_driver.lint.finding import Finding, LintReport
from dra_driver.lint.run import lint

__all__ = ["Finding", "LintReport", "lint"]
