"""The API server: connection, REST requests, watches, events, claims and whole cluster states. Other packages import
the modules directly: one that imports all would load the HTTP client (1.7 MiB) everywhere."""
