"""The node process: sockets, registration and the DRA service for the kubelet, and what keeps the node published.

``plugin.py`` wires and starts everything; the command line imports it alone.
"""
