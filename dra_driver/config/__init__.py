"""Define settings, opaque parameters of claims, and policies, and check them. Other packages import its modules: the
MPS host loads only ``options.py``."""
