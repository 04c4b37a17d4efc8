"""``kubectl dra kueue``: print Kueue's configuration and queues for the published devices."""

import argparse
import json
import sys
from typing import Final

import yaml

from dra_driver.core.errors import ConfigurationError
from dra_driver.core.text import counted, printable
from dra_driver.kubectl.capacity import configuration, extended_resource, queue_objects, quotas_of, stocks_of
from dra_driver.kubectl.commands.source import add_source, is_unread, state_of, tell_gaps

_MAX_MAPPINGS: Final = 16
DESCRIPTION: Final = """\
Print objects for Kueue 0.19 from the devices that nodes publish now.

  kubectl dra kueue config             resources.deviceClassMappings: merge it into Kueue's Configuration, restart Kueue
  kubectl dra kueue queues -n team-a   DeviceClasses of each model, ResourceFlavor, ClusterQueue, LocalQueue of team-a

Kueue charges the largest device that a class matches. Jobs therefore use the printed classes, which name one model.
Quotas are the sums of untainted devices, and CPU and memory of their nodes. Print them again after a change of the
fleet. A fragmented GPU can lack a place for a MIG device that a quota admits.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=("config", "queues"), help="what to print")
    parser.add_argument("-n", "--namespace", metavar="NAME", default="", help="with queues: add a LocalQueue")
    parser.add_argument("--driver", metavar="NAME", default="gpu.nvidia.com", help="default: gpu.nvidia.com")
    parser.add_argument("-o", "--output", choices=("yaml", "json"), default="yaml", help="default: yaml")
    add_source(parser)


def run(args: argparse.Namespace) -> int:
    """Print the objects. Raises ConfigurationError without devices and for more models than Kueue can map."""
    state = state_of(args, only=("slices", "nodes", "classes"))
    tell_gaps(state.gaps)
    stocks = stocks_of(state.slices, args.driver)
    quotas = [quota for stock in stocks for quota in quotas_of(stock, args.driver)]
    if not quotas:
        cause = "resource slices cannot be read" if is_unread(state, "resourceslices") else "no node publishes a device"
        raise ConfigurationError(f"{cause} of driver {args.driver}")
    if len(quotas) > _MAX_MAPPINGS:
        raise ConfigurationError(f"{len(stocks)} models need {len(quotas)} mappings; Kueue accepts {_MAX_MAPPINGS}")
    for stock in stocks:
        if stock.tainted:
            print(
                printable(f"{stock.product}: the quotas omit {counted(stock.tainted, 'tainted GPU')}"), file=sys.stderr
            )
    extended = extended_resource(state, args.driver) if args.action == "queues" else ""
    if extended and not any(stock.all_whole for stock in stocks):
        print(printable(f"no whole GPU is published: the ClusterQueue has no quota for {extended}"), file=sys.stderr)
    documents = (
        [configuration(quotas, args.driver)]
        if args.action == "config"
        else queue_objects(state, stocks, quotas, args.driver, args.namespace)
    )
    if args.output == "yaml":
        print(yaml.safe_dump_all(documents, sort_keys=False, width=118), end="")
    else:
        items = {"apiVersion": "v1", "kind": "List", "items": documents}
        print(json.dumps(documents[0] if args.action == "config" else items, indent=2))
    return 0
