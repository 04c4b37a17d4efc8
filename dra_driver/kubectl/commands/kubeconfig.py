"""Flags that select the API server and the namespace of a command."""

import argparse
import os
from pathlib import Path

from dra_driver.kube.kubeconfig import DEFAULT, Kubeconfig

SERVICE_ACCOUNT_DIR = Path("/var/run/secrets/kubernetes.io/serviceaccount")


def add_kubeconfig(parser: argparse.ArgumentParser, group: argparse._ActionsContainer | None = None) -> None:
    """Adds ``--kubeconfig``, to ``group`` if there is one, and ``--context``."""
    (group or parser).add_argument(
        "--kubeconfig", metavar="FILE", help="how to reach the API server (default: as kubectl does)"
    )
    parser.add_argument(
        "--context", metavar="NAME", help="which context of the kubeconfig (default: its current context)"
    )


def kubeconfig_of(args: argparse.Namespace) -> Kubeconfig:
    """What these flags choose. Raises ConfigurationError for a context that does not exist."""
    found = Kubeconfig(path=args.kubeconfig, context=args.context)
    if found.context is not None:
        found.check(os.environ)
    return found


def namespace_of(args: argparse.Namespace) -> str:
    """That of ``-n``, else the kubeconfig's; of a file of the cluster's state ``default``. As `kubeconfig_of`."""
    if args.namespace or any(getattr(args, name, None) for name in ("cluster_state", "snapshot")):
        return str(args.namespace or DEFAULT)
    return kubeconfig_of(args).namespace(os.environ, SERVICE_ACCOUNT_DIR)
