"""Examples that ``--help`` and docs/cli.md show for commands whose own text has none. A test parses each."""

from typing import Final

EXAMPLES: Final = {
    "kubectl dra devices": """\
  kubectl dra devices gpu-a                   devices of the node and their claims
  kubectl dra devices -l pool=training -w     of labelled nodes, with changes until Ctrl-C
  kubectl dra devices -n team-a -o json       devices of a namespace's claims""",
    "kubectl dra topology": """\
  kubectl dra topology --node gpu-a           its GPUs with their links and claims
  kubectl dra topology -o json""",
    "kubectl dra claims": """\
  kubectl dra claims --pending -A             unallocated claims of all namespaces
  kubectl dra claims -n team-a --node gpu-a""",
    "kubectl dra capacity": """\
  kubectl dra capacity                        free, fragmented and stranded GPUs, and fitting claims
  kubectl dra capacity --share 8Gi --by-node     how many shares of 8 GiB, node by node
  kubectl dra capacity --cluster-state cluster.json""",
    "kubectl dra usage": """\
  kubectl dra usage                           devices of the namespace's claims, from the exporters
  kubectl dra usage -A --by namespace -o csv
  kubectl dra usage -n team-a --prometheus http://localhost:9090 --window 7d""",
    "kubectl dra node-template": """\
  kubectl dra node-template 8xh100-sxm5-80gb
  kubectl dra node-template 1xt4-16gb --policy examples/policies/t4-eighths.yaml -o json""",
    "kubectl dra top": """\
  kubectl dra top -w                          claims of the namespace, until Ctrl-C
  kubectl dra top nodes --sort-by memory""",
    "kubectl dra idle": """\
  kubectl dra idle                            in the exporters' window
  kubectl dra idle --idle-for 12h --prometheus http://localhost:9090 --window 7d""",
    "kubectl dra quota": """\
  kubectl dra quota
  kubectl dra quota -n team-a --idle          with idle devices""",
    "kubectl dra classes": """\
  kubectl dra classes list
  kubectl dra classes apply --dry-run
  kubectl dra classes prune""",
    "kubectl dra policy explain": """\
  kubectl dra policy explain gpu-a/gpu-0
  kubectl dra policy explain gpu-a/gpu-0 --policies policies/ --gpus 8xh100-sxm5-80gb    before it is applied""",
    "kubectl dra lint": """\
  kubectl dra lint manifests/                 only files, without a cluster
  kubectl dra lint --strict -o sarif manifests/    for CI
  kubectl dra lint -n team-a                  objects in the cluster""",
    "kubectl dra snapshot": """\
  kubectl dra snapshot cluster.json
  kubectl dra snapshot -n team-a -            to standard output""",
    "kubectl dra drain": """\
  kubectl dra drain gpu-a --evict             before an upgrade of the NVIDIA driver
  kubectl dra drain gpu-a --gpu gpu-3 --evict --timeout 30m    before one GPU is reset
  kubectl dra drain gpu-a                     exclude new claims, and wait for the users of GPUs""",
    "kubectl dra undrain": """\
  kubectl dra undrain gpu-a
  kubectl dra undrain gpu-a --gpu gpu-3""",
    "kubectl dra hardware-check": """\
  kubectl dra hardware-check gpu-a
  kubectl dra hardware-check gpu-a --only 1,2,3 --output report.json""",
    "dra-driver kubelet-plugin": """\
  dra-driver kubelet-plugin --node-name gpu-a --kubeconfig admin.conf
  dra-driver kubelet-plugin --node-name laptop --simulate 2xh100-sxm5-80gb --policy-dir policies/""",
    "dra-driver mps-host": """\
  dra-driver mps-host --driver-root /run/nvidia/driver --tmpfs-size 4Gi
  dra-driver mps-host --check                 as the probe of its pod""",
    "dra-driver controller": """\
  dra-driver controller --kubeconfig admin.conf --pod-name here
  dra-driver controller --evict-extended-resource-pods true --max-evictions-per-minute 5""",
    "dra-driver sim up": """\
  dra-driver sim up --node gpu-a=4xa100-sxm4-40gb --node gpu-b=8xl4-24gb
  dra-driver sim up --kubeconfig sim.conf --policy-dir policies/ --controller
  dra-driver sim up --policy-dir policies/ --controller --usage --ui""",
    "dra-driver sim demo": """\
  dra-driver sim demo""",
    "dra-driver sim inject": """\
  dra-driver sim inject gpu-a gpu-0 xid=79    the GPU falls off the bus
  dra-driver sim inject gpu-a gpu-0 ecc --kubeconfig sim.conf""",
    "dra-driver sim recover": """\
  dra-driver sim recover gpu-a gpu-0
  dra-driver sim recover gpu-a                all GPUs of the node""",
    "dra-driver hardware-check": """\
  dra-driver hardware-check
  dra-driver hardware-check --gpu 0 --only 3,4,5
  dra-driver hardware-check --replay hardware-check-report.json""",
    "dra-driver state": """\
  dra-driver state --hardware
  dra-driver state --repair                   while no node process runs""",
    "dra-driver cleanup": """\
  dra-driver cleanup --dry-run
  dra-driver cleanup""",
    "dra-driver policy check": """\
  dra-driver policy check policies/
  dra-driver policy check policies/ --gpus 8xh100-sxm5-80gb --node gpu-a""",
}


def with_examples(program: str, epilog: str | None) -> str | None:
    found = EXAMPLES.get(program)
    if found is None:
        return epilog
    return f"examples:\n{found}" + (f"\n\n{epilog}" if epilog else "")
