"""Log format, metrics and the HTTP endpoint of a process. Each module can be used without the others."""
