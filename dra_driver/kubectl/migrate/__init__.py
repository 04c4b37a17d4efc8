"""Translate configurations and workloads of the device plugin, the GPU Operator and mig-parted to this driver."""

from dra_driver.kubectl.migrate.ledger import InputDocument
from dra_driver.kubectl.migrate.report import Migration, as_text, report_of, summary
from dra_driver.kubectl.migrate.translation import MigrateOptions, Translation, translate
