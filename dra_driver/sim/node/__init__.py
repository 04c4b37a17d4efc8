"""Simulated nodes: kubelet, containers as folders, and the real node process and MPS host as child processes."""
