"""Commands of `kubectl dra` and its web UI."""
