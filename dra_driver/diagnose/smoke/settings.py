"""Which image the pods run: the one that is named, or that of the node process, which every node with GPUs has."""

from dra_driver.core.errors import ConfigurationError, NotFoundError
from dra_driver.diagnose.smoke.attempt import SmokeApi
from dra_driver.diagnose.smoke.objects import PodSettings
from dra_driver.diagnose.smoke.options import SmokeOptions
from dra_driver.kube import paths

_NODE_COMMAND = "kubelet-plugin"


def pod_settings(api: SmokeApi, options: SmokeOptions) -> PodSettings:
    """Raises ConfigurationError when there is no DaemonSet to take the image from, and KubernetesApiError."""
    image, secrets = options.image, list[str]()
    if not image:
        image, secrets = _of_daemon_set(api, options)
    return PodSettings(
        namespace=options.namespace,
        image=image,
        pull_secrets=tuple(secrets) if options.namespace == options.driver_namespace else (),
        user=options.user,
        timeout_s=options.timeout_s,
    )


def _of_daemon_set(api: SmokeApi, options: SmokeOptions) -> tuple[str, list[str]]:
    name, namespace = options.daemon_set, options.driver_namespace
    try:
        spec = api.get(paths.daemon_set(namespace, name))["spec"]["template"]["spec"]
    except NotFoundError as error:
        raise ConfigurationError(
            f"no DaemonSet {name} in namespace {namespace} to take the image from: name it with --driver-namespace "
            "and --daemonset (kubectl get daemonsets -A lists them), or an image with --image"
        ) from error
    containers = spec["containers"]
    ours = [item for item in containers if _NODE_COMMAND in (*item.get("command", ()), *item.get("args", ()))]
    return (ours or containers)[0]["image"], [item["name"] for item in spec.get("imagePullSecrets") or ()]
