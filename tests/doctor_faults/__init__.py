"""Broken set-ups, and what `kubectl dra doctor` has to report first of each."""

from tests.doctor_faults import rows_cluster, rows_objects, rows_policies, rows_usage, rows_workloads
from tests.doctor_faults.row import ROWS

__all__ = ["ROWS", "rows_cluster", "rows_objects", "rows_policies", "rows_usage", "rows_workloads"]
