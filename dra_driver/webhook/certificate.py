"""The certificate that is served: read again when the controller replaces the file."""

import logging
import ssl
from datetime import UTC, datetime
from pathlib import Path

from msgspec import Struct

from dra_driver.config.webhook_files import EXPIRES, SERVING, TIME_FORMAT

log = logging.getLogger(__name__)


class _Served(Struct, frozen=True):
    context: ssl.SSLContext
    expires: datetime


class ServedCertificate:
    """Not thread-safe, except for `problem` and `expires`."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / SERVING
        self._seen: tuple[int, int] | None = None
        self._served: _Served | None = None
        self._unreadable = ""

    def look(self) -> None:
        """Read the file if it was replaced. A file that cannot be used leaves the former certificate."""
        try:
            status = self._path.stat()
        except OSError:
            self._unreadable = "the controller has not handed over a certificate yet"
            return
        if (status.st_ino, status.st_mtime_ns) == self._seen:
            return
        self._seen = (status.st_ino, status.st_mtime_ns)
        try:
            self._served, self._unreadable = self._read(), ""
            log.info("serving a certificate", extra={"expires": self._served.expires.strftime(TIME_FORMAT)})
        except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
            self._unreadable = f"the certificate that the controller handed over cannot be used: {error}"
            log.warning("certificate not used", extra={"reason": str(error)})

    def context(self) -> ssl.SSLContext | None:
        """For a new connection."""
        return self._served.context if self._served is not None else None

    @property
    def expires(self) -> datetime | None:
        """When the served certificate ends."""
        return self._served.expires if self._served is not None else None

    def problem(self, now: datetime) -> str | None:
        """Why the API server cannot trust it; None if it can."""
        if self._served is None:
            return self._unreadable or "no certificate was read yet"
        if now >= self._served.expires:
            return (
                f"the certificate expired at {self._served.expires.strftime(TIME_FORMAT)} and the controller made no "
                "other: nothing is checked until it does, see its log"
            )
        return None

    def _read(self) -> _Served:
        first = self._path.read_text("ascii").partition("\n")[0]
        if not first.startswith(EXPIRES):
            raise ValueError(f"its first line is not {EXPIRES!r} and a time")
        expires = datetime.strptime(first.removeprefix(EXPIRES), TIME_FORMAT).replace(tzinfo=UTC)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.load_cert_chain(self._path)
        return _Served(context, expires)
