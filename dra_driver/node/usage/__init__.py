"""Attribute the use of GPUs to claims, and find claims over their grant, idle claims and other processes. No I/O."""
