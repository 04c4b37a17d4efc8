"""Run cluster-wide tasks: policy status, evictions, capacity metrics. Access only the API server."""
