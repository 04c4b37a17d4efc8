"""Checks of manifests before they are applied: ``lint(sources, known)`` gives a `Report`."""

from dra_driver.lint.finding import Finding, Report
from dra_driver.lint.run import lint

__all__ = ["Finding", "Report", "lint"]
