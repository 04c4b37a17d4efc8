"""Sharing of GPUs: time slices, compute modes and MPS daemons.

Other packages import the modules: the MPS host loads ``host.py``, the node process ``mps.py`` and ``timeslice.py``, and
neither may load both halves.
"""
