"""The root of an NVIDIA driver's installation: where it is, and where its libraries and programs are below it.

Other packages import its modules: the MPS host needs the search alone.
"""
