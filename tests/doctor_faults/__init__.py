"""Broken set-ups, and what `kubectl dra doctor` has to report first of each."""

from tests.doctor_faults import rows_cluster, rows_requests

ROWS = (*rows_cluster.ROWS, *rows_requests.ROWS)
