"""The embedded cluster's API server: Kubernetes' REST interface over objects in memory, on loopback only.

Modules from the bottom up: values and errors (`jsonvalue`, `problems`, `kind`, `api_errors`), each kind's behaviour
(`printers`, `rules`, `kinds`), the objects (`state`, `patch`, `removal`, `writes`, `store`), and HTTP (`paths`,
`verbs`, `router`, `asgi_app`, `server`). In-process users call `store.Store`; only `server.ApiServer` loads the web
server.
"""
