"""The embedded cluster: an API server, a scheduler, controllers and simulated nodes in one process."""
