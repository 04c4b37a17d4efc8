"""The columns and rows of `kubectl get`, by kind."""
