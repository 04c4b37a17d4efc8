"""From the device plugin, the GPU Operator and mig-parted to this driver: pure translators and a report.

``translate(documents, options, read_text)`` returns a `Translation`. Other packages import from here.
"""

from dra_driver.kubectl.migrate.ledger import InputDocument
from dra_driver.kubectl.migrate.report import as_json, as_text, summary
from dra_driver.kubectl.migrate.translation import MigrateOptions, Translation, translate

__all__ = ["InputDocument", "MigrateOptions", "Translation", "as_json", "as_text", "summary", "translate"]
