"""The embedded cluster's API server: Kubernetes' REST interface over objects in memory, on loopback only.

Rooms inside, from the bottom up: values and rules (`jsonvalue`, `problems`, `kind`), what each kind means (`kinds`,
`rules_*`, `print_*`), the objects themselves (`state`, `writes`, `removal`, `patching`), and the HTTP door (`paths`,
`http`, `server`). In-process users go through `dra_driver.sim.store.Store`; only `server.ApiServer` loads the web
server.
"""
