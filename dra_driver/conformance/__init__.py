"""A conformance suite for DRA drivers: a fake kubelet that tests any driver on its sockets, and the checks.

`suite.run` is the way in. The checks are in ``checks/``; they use `bench.Bench`, which is the kubelet and the scheduler
at once.
"""
