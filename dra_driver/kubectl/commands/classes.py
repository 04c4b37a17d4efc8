"""``kubectl dra classes``: maintain one DeviceClass per published MIG profile and sharing strategy."""

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from dra_driver.core.command_line.table import TableColumn
from dra_driver.core.convert import convert
from dra_driver.core.document import JsonDocument, camel
from dra_driver.core.errors import KubernetesApiError
from dra_driver.kube import paths
from dra_driver.kube.label_selector import selects
from dra_driver.kube.published.device_classes import ClassPlan, offers, plan, users
from dra_driver.kubectl.commands.listing import Listed, add_output, add_selector, print_list
from dra_driver.kubectl.commands.source import add_kubeconfig, client, kubeconfig_of

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


class ClassRow(Struct, frozen=True, kw_only=True, rename=camel):
    """One DeviceClass. ``state`` is missing, present, changed, foreign, taken or unused."""

    device_class: str
    extended_resource: str
    device_count: int
    state: str
    reason: str


class ClassList(JsonDocument, frozen=True, kw_only=True):
    items: Sequence[ClassRow]


COLUMNS: Final = (
    TableColumn[ClassRow]("CLASS", lambda row: row.device_class),
    TableColumn[ClassRow]("EXTENDED RESOURCE", lambda row: row.extended_resource),
    TableColumn[ClassRow]("DEVICES", lambda row: str(row.device_count)),
    TableColumn[ClassRow]("STATE", lambda row: row.state),
    TableColumn[ClassRow]("WHY", lambda row: row.reason, wide=True),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=("list", "apply", "prune"))
    parser.add_argument("--dry-run", action="store_true", help="print the changes without writing them")
    parser.add_argument("--driver", metavar="NAME", default="gpu.nvidia.com", help="default: gpu.nvidia.com")
    add_selector(parser, "classes")
    add_output(parser, "wide", "name", "json", "yaml")
    add_kubeconfig(parser)


def run(args: argparse.Namespace) -> int:
    rest = client(kubeconfig_of(args))
    offered = offers(
        rest.list(paths.resource_slices(), {"fieldSelector": f"spec.driver={args.driver}"})["items"], args.driver
    )
    plans = plan(offered, rest.list(paths.device_classes())["items"], args.driver)
    if args.action != "list":
        return (_apply if args.action == "apply" else _prune)(rest, plans, args.dry_run)
    shown = [each for each in plans if not args.selector or (each.present and selects(args.selector, each.present))]
    rows = convert(shown, list[ClassRow], from_attributes=True)
    return print_list(
        args,
        lambda: Listed(
            document=ClassList(items=rows),
            rows=rows,
            columns=COLUMNS,
            name=lambda row: f"deviceclass.resource.k8s.io/{row.device_class}",
            noun="classes of published devices",
        ),
    )


def _apply(rest: "RestClient", plans: Sequence[ClassPlan], dry_run: bool) -> int:
    undone = 0
    for each in plans:
        if each.state not in {"missing", "changed"}:
            if each.state != "unused":
                print(f"{each.device_class}: unchanged{f': {each.reason}' if each.reason else ''}")
            continue
        wanted = each.wanted or {}
        try:
            if each.present is None:
                kept = rest.create(paths.device_classes(), wanted, dry_run=dry_run)
            else:
                body = {**each.present, "spec": wanted["spec"]}
                kept = rest.update(f"{paths.device_classes()}/{each.device_class}", body, dry_run=dry_run)
        except KubernetesApiError as error:
            undone += 1
            print(f"{each.device_class}: {error}")
            continue
        done = "created" if each.state == "missing" else "restored"
        print(f"{each.device_class}: {f'would be {done}' if dry_run else done}")
        if each.extended_resource and not (kept.get("spec") or {}).get("extendedResourceName"):
            print(
                f"{each.device_class}: the API server drops extendedResourceName (feature gate DRAExtendedResource):"
                f" pods cannot request {each.extended_resource}; claims can name the class"
            )
    return 1 if undone else 0


def _prune(rest: "RestClient", plans: Sequence[ClassPlan], dry_run: bool) -> int:
    undone = 0
    unused = [each for each in plans if each.state == "unused"]
    claims = rest.list(paths.resource_claims())["items"] if unused else []
    templates = rest.list(f"{paths.RESOURCE_API}/resourceclaimtemplates")["items"] if unused else []
    for each in unused:
        named_by = users(each.device_class, claims, templates)
        metadata = (each.present or {})["metadata"]
        if named_by:
            more = f", and {len(named_by) - 1} more" if named_by[1:] else ""
            print(f"{each.device_class}: kept: {named_by[0]} names it{more}")
            continue
        try:
            if not dry_run:
                rest.delete(
                    f"{paths.device_classes()}/{each.device_class}",
                    metadata.get("uid"),
                    metadata.get("resourceVersion"),
                )
        except KubernetesApiError as error:
            undone += 1
            print(f"{each.device_class}: {error}")
            continue
        print(f"{each.device_class}: {'would be deleted' if dry_run else 'deleted'}")
    return 1 if undone else 0
