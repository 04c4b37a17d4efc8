"""Reads labels of claims from the API server, for ``--by label:KEY``."""

import argparse
from typing import TYPE_CHECKING, Final

from dra_driver.core.errors import KubernetesApiError
from dra_driver.kubectl.commands.kubeconfig import kubeconfig_of
from dra_driver.kubectl.commands.source import client

if TYPE_CHECKING:
    from dra_driver.kubectl.usage.device_use import Labels

BY_LABEL: Final = "label:"
ABOUT: Final = "a label is the claim's, or that of all its pods"


def read_labels(args: argparse.Namespace) -> "tuple[Labels, tuple[str, ...]]":
    """Labels of the claims that exist, and what could not be read. Raises KubernetesApiError when the claims cannot be
    read: a sum by label says nothing then."""
    from dra_driver.kube import paths
    from dra_driver.kubectl.usage.device_use import claim_labels

    api = client(kubeconfig_of(args))
    claims = api.list(paths.resource_claims(args.namespace))["items"]
    try:
        return claim_labels(claims, api.list(paths.pods(args.namespace))["items"]), ()
    except KubernetesApiError as error:
        return claim_labels(claims, ()), (f"labels of pods are not known, only those of claims: {error}",)
