"""``kubectl dra classes``: maintain one DeviceClass per published MIG profile and sharing strategy."""

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from dra_driver.core.errors import KubernetesApiError
from dra_driver.kube import paths
from dra_driver.kube.published.device_classes import ClassPlan, offers, plan, users
from dra_driver.kubectl.commands.source import add_kubeconfig, client, kubeconfig_of, print_table

if TYPE_CHECKING:
    from dra_driver.kube.rest import RestClient

DESCRIPTION: Final = """\
Maintain one DeviceClass for each published MIG profile and sharing strategy. Claims can name a class instead of a
selector, and pods can request nvidia.com/mig-1g.10gb as with the device plugin.

  list    show the classes and the planned changes
  apply   create missing classes and restore changed ones; delete nothing
  prune   delete managed classes without published devices, except classes in use by claims or templates

Only classes with the label app.kubernetes.io/managed-by=dra-driver-classes are changed.
"""
_HEADINGS: Final = ("CLASS", "EXTENDED RESOURCE", "DEVICES", "STATE", "WHY")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=("list", "apply", "prune"))
    parser.add_argument("--dry-run", action="store_true", help="print the changes without writing them")
    parser.add_argument("--driver", metavar="NAME", default="gpu.nvidia.com", help="default: gpu.nvidia.com")
    add_kubeconfig(parser)


def run(args: argparse.Namespace) -> int:
    rest = client(kubeconfig_of(args))
    offered = offers(
        rest.list(paths.resource_slices(), {"fieldSelector": f"spec.driver={args.driver}"})["items"], args.driver
    )
    plans = plan(offered, rest.list(paths.device_classes())["items"], args.driver)
    if args.action != "list":
        return (_apply if args.action == "apply" else _prune)(rest, plans, args.dry_run)
    rows = [(each.name, each.extended_resource, str(each.devices), each.state, each.reason) for each in plans]
    print_table(_HEADINGS, rows)
    return 0


def _apply(rest: "RestClient", plans: Sequence[ClassPlan], dry_run: bool) -> int:
    undone = 0
    for each in plans:
        if each.state not in {"missing", "changed"}:
            undone += each.state in {"foreign", "taken"}
            if each.reason and each.state != "unused":
                print(f"{each.name}: unchanged: {each.reason}")
            continue
        wanted = each.wanted or {}
        try:
            if each.present is None:
                kept = rest.create(paths.device_classes(), wanted, dry_run=dry_run)
            else:
                body = {**each.present, "spec": wanted["spec"]}
                kept = rest.update(f"{paths.device_classes()}/{each.name}", body, dry_run=dry_run)
        except KubernetesApiError as error:
            undone += 1
            print(f"{each.name}: {error}")
            continue
        done = "created" if each.state == "missing" else "restored"
        print(f"{each.name}: {f'would be {done}' if dry_run else done}")
        if each.extended_resource and not (kept.get("spec") or {}).get("extendedResourceName"):
            print(
                f"{each.name}: the API server drops extendedResourceName (feature gate DRAExtendedResource):"
                f" pods cannot request {each.extended_resource}; claims can name the class"
            )
    return 1 if undone else 0


def _prune(rest: "RestClient", plans: Sequence[ClassPlan], dry_run: bool) -> int:
    undone = 0
    unused = [each for each in plans if each.state == "unused"]
    claims = rest.list(paths.resource_claims())["items"] if unused else []
    templates = rest.list(f"{paths.RESOURCE_API}/resourceclaimtemplates")["items"] if unused else []
    for each in unused:
        named_by = users(each.name, claims, templates)
        metadata = (each.present or {})["metadata"]
        if named_by:
            undone += 1
            print(
                f"{each.name}: kept: {named_by[0]} names it{f', and {len(named_by) - 1} more' if named_by[1:] else ''}"
            )
            continue
        try:
            if not dry_run:
                rest.delete(
                    f"{paths.device_classes()}/{each.name}", metadata.get("uid"), metadata.get("resourceVersion")
                )
        except KubernetesApiError as error:
            undone += 1
            print(f"{each.name}: {error}")
            continue
        print(f"{each.name}: {'would be deleted' if dry_run else 'deleted'}")
    return 1 if undone else 0
