"""The embedded cluster's API server: Kubernetes' REST interface over objects in memory, on loopback only. In-process
users call `store.Store`; only `server.ApiServer` loads the web server."""
