"""The node whose state folder is recorded here for tests/scenario/test_upgrade.py, from version 6bf8a09.

The node has four simulated H100 and these claims when its node process is killed:

    whole        GPU 0
    partitions   1g.10gb and 2g.20gb of GPU 1
    time-sliced  GPU 2, interval Long
    share-10     10 GiB and 10 % of GPU 3, by MPS
    share-20     20 GiB and 20 % of GPU 3, by MPS
    preparing    1g.10gb of GPU 1; killed between the GPU instance and its compute instance

A recording has ``plugin/`` and ``cdi/`` as they were, and ``claims.json``: per claim the API object, and what the
kubelet was answered (device names and CDI ids), null for the last one. In text files the node's folder is written
``@ROOT@`` and the machine's boot id ``@BOOT_ID@``; in the journal, which is a database, the boot id stands as text of
the same length, and the test replaces it by SQL.
"""

SPEC = "4xh100-sxm5-80gb"
POLICY = """\
apiVersion: gpu.dra-driver.io/v1alpha1
kind: GpuPolicy
metadata:
  name: shared-mps
spec:
  select:
    minors: [3]
  sharing:
    strategy: MPS
"""
