"""Simulated GPUs, their state file, and the driver root with the programs of a simulated driver."""
