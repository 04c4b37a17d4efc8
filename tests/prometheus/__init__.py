"""The chart's rules and dashboards, tried with Prometheus' own programs (``make alerts``, ``make prometheus``)."""
