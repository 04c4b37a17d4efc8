"""Partitions of GPUs: created and destroyed (`manager`), and the order in which they are published (`order`)."""
