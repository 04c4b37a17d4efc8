"""The settings of the webhook process: names, defaults and checks of the values alone."""

from dataclasses import dataclass

from dra_driver.config import common_options
from dra_driver.config.controller_settings import whole
from dra_driver.config.options import Option, setting
from dra_driver.core.telemetry.logs import LogFormat, LogLevel

WEBHOOK, TELEMETRY = "webhook", "telemetry"


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookSettings:
    """Settings of ``dra-driver webhook``."""

    webhook_dir: str = setting(
        Option(
            WEBHOOK,
            "WEBHOOK_DIR",
            "FOLDER",
            "folder in which the controller hands over certificates",
            common_options.absolute,
        )
    )
    webhook_addr: str = setting(
        Option(WEBHOOK, "WEBHOOK_ADDR", "HOST:PORT", "address that serves the API server", common_options.http_addr),
        ":9443",
    )
    workers: int = setting(
        Option(
            WEBHOOK, "WEBHOOK_WORKERS", "COUNT", "processes that judge objects, 1 to 16; each has 30 MiB", whole(1, 16)
        ),
        2,
    )
    policy_files: bool = setting(
        Option(
            WEBHOOK,
            "POLICY_FILES",
            "true|false",
            "nodes have GpuPolicies in files too, so attributes that no GpuPolicy object adds are not refused",
            common_options.switch,
        ),
        False,
    )
    http_addr: str = setting(common_options.http_endpoint(TELEMETRY), "")
    log_format: LogFormat = setting(common_options.log_format(TELEMETRY), "text")
    log_level: LogLevel = setting(common_options.log_level(TELEMETRY), "info")

    def __post_init__(self) -> None:
        if not self.webhook_addr:
            raise ValueError("--webhook-addr (WEBHOOK_ADDR) is empty: expected HOST:PORT, such as :9443")
