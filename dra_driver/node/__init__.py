"""Run the driver on each node: the node process and the usage exporter."""
