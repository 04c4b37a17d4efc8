"""The API server: connection, REST requests, watches, events, and reading claims and whole cluster states.

Other packages import its modules directly. A face that imported all of them would load the HTTP client (1.7 MiB) for
users of ``names``, ``paths`` and ``types`` alone.
"""
