"""Device nodes of NVIDIA's kernel modules in the host's ``/dev``, and the links to them in ``/dev/char``.

Other packages import its modules: most need the device numbers alone.
"""
