"""Web UI of ``kubectl dra ui``: the fleet in a browser, served on loopback with the user's permissions. Reads only."""
