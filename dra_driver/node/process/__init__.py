"""The node process: sockets and the DRA service for the kubelet, and the publishers of the node; see `plugin`."""
