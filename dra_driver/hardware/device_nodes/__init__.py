"""Device nodes of NVIDIA's kernel modules in the host's ``/dev``. Other packages import the modules: most need only the
numbers."""
