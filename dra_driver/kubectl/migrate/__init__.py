"""Translate configurations and workloads of the device plugin, the GPU Operator and mig-parted to this driver."""

from dra_driver.kubectl.migrate.ledger import InputDocument
from dra_driver.kubectl.migrate.report import as_json, as_text, summary
from dra_driver.kubectl.migrate.translation import MigrateOptions, Translation, translate

__all__ = ["InputDocument", "MigrateOptions", "Translation", "as_json", "as_text", "summary", "translate"]
