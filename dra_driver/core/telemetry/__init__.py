"""Log format, metrics and the HTTP endpoint of a process. The modules are independent of each other."""
