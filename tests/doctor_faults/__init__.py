"""Broken set-ups, and what `kubectl dra doctor` has to report first of each."""

from tests.doctor_faults import rows_cluster, rows_objects, rows_policies, rows_workloads

ROWS = (*rows_cluster.ROWS, *rows_objects.ROWS, *rows_policies.ROWS, *rows_workloads.ROWS)
