"""The root of an NVIDIA driver's installation. Other packages import the modules: the MPS host needs the search
only."""
