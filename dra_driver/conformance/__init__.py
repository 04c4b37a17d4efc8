"""Conformance suite for DRA drivers: a fake kubelet tests any driver on its sockets; `suite.run` runs the checks."""
