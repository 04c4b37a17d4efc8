"""Run what people type and look at: `kubectl dra` and its web UI."""
