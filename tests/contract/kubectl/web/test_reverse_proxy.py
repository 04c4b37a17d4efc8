"""The process of the page for visitors behind a real nginx with TLS, against the embedded API server behind RBAC."""

import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import urllib3

from tests.harness.visitors import ADMIN, TENANT, Browser, World, embedded, page_process

NGINX, OPENSSL = (shutil.which(name, path="/usr/sbin:/usr/local/sbin:/usr/bin:/bin") for name in ("nginx", "openssl"))
HOST = "gpus.example.com"
PASSWORDS = {ADMIN: "admin-password", TENANT: "tenant-password"}

pytestmark = [
    pytest.mark.skipif(NGINX is None or OPENSSL is None, reason="nginx and openssl are not installed"),
    pytest.mark.filterwarnings("ignore:Unverified HTTPS request"),
    pytest.mark.timeout(120),
]


class Proxy:
    """nginx with three servers: for an ingress, one that drops the Host header, one that authenticates visitors."""

    def __init__(self, folder: Path, tokens: dict[str, str]) -> None:
        self._folder, self._tokens = folder, tokens
        self.ports = [_free_port() for _ in range(3)]

    def origin(self, number: int) -> str:
        return f"https://{HOST}:{self.ports[number]}"

    def browser(self, number: int, **headers: str) -> Browser:
        return Browser(f"https://127.0.0.1:{self.ports[number]}", **{"host": f"{HOST}:{self.ports[number]}", **headers})

    @contextmanager
    def running(self, page: str) -> Iterator[None]:
        key = ["-newkey", "rsa:2048", "-nodes", "-keyout", "key.pem", "-out", "cert.pem", "-subj", f"/CN={HOST}"]
        subprocess.run([str(OPENSSL), "req", "-x509", *key], cwd=self._folder, check=True, capture_output=True)
        lines = [f"{name}:{{PLAIN}}{password}" for name, password in PASSWORDS.items()]
        (self._folder / "passwords").write_text("\n".join(lines))
        (self._folder / "nginx.conf").write_text(self._configuration(page))
        command = [str(NGINX), "-p", str(self._folder), "-c", "nginx.conf", "-e", "error.log"]
        with subprocess.Popen(command, stderr=sys.stderr) as process:
            try:
                self._wait()
                yield
            finally:
                process.terminate()

    def _wait(self) -> None:
        deadline = time.monotonic() + 10
        while True:
            try:
                return socket.create_connection(("127.0.0.1", self.ports[-1]), 1).close()
            except OSError:
                assert time.monotonic() < deadline, (self._folder / "error.log").read_text()
                time.sleep(0.05)

    def _configuration(self, page: str) -> str:
        tls = "ssl_certificate cert.pem; ssl_certificate_key key.pem;"
        head = "proxy_set_header Host $http_host;"
        users = "".join(f'{name} "Bearer {self._tokens[name]}"; ' for name in PASSWORDS)
        servers = [
            head,
            "",
            f'{head} auth_basic "GPUs"; auth_basic_user_file passwords; proxy_set_header Authorization $token;',
        ]
        written = "".join(
            f"server {{ listen 127.0.0.1:{port} ssl; {tls} location / {{ proxy_pass {page}; {each} }} }}\n"
            for port, each in zip(self.ports, servers, strict=True)
        )
        temporary = " ".join(f"{name}_temp_path tmp;" for name in ("client_body", "proxy"))
        http = f'access_log off; {temporary} map $remote_user $token {{ default ""; {users}}}'
        return f"daemon off; master_process off; pid nginx.pid; events {{}} http {{ {http} {written} }}"


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def proxy(world: World, tmp_path: Path) -> Iterator[Proxy]:
    with embedded(world, PASSWORDS, tmp_path) as (gate, tokens):
        made = Proxy(tmp_path, tokens)
        flags = [f"--origin={made.origin(number)}" for number in range(3)]
        with (
            page_process(gate.kubeconfig(tmp_path / "page.conf"), tmp_path, *flags) as page,
            made.running(page.address),
        ):
            yield made


def test_visitors_sign_in_through_a_proxy_with_tls(proxy: Proxy, world: World) -> None:
    browser = proxy.browser(0)
    token = {"token": f"secret-{ADMIN}-{world.suffix}", "namespaces": ""}
    assert browser.post("/sign-in", token)[0] == 403  # the Origin of the proxy's own address
    assert browser.post("/sign-in", token, origin=proxy.origin(0))[0] == 303
    assert browser.cookie.startswith("__Host-dra_ui=")
    assert f"theirs-{world.suffix}" in browser.pages()["/claims"]
    live = urllib3.PoolManager(cert_reqs="CERT_NONE", retries=False).request(
        "GET",
        f"{browser.address}/live",
        headers={**browser.headers, "cookie": browser.cookie},
        preload_content=False,
        timeout=10.0,
    )
    begun = time.monotonic()
    assert live.read(6) == b"retry:"
    assert time.monotonic() - begun < 5, "nginx keeps the stream back"
    live.close()
    assert proxy.browser(0, host="gpus.evil.example").get("/")[0] == 421
    assert proxy.browser(0).get("/claims")[0] == 401


def test_proxy_without_the_host_header_is_named_in_the_refusal(proxy: Proxy) -> None:
    status, text = proxy.browser(1).post("/sign-in", {"token": "x"}, origin=proxy.origin(1))
    assert status == 403
    assert "Host header" in text


def test_proxy_that_authenticates_shows_each_visitor_their_objects(proxy: Proxy, world: World) -> None:
    assert proxy.browser(2).get("/")[0] == 401
    forged = proxy.browser(2, authorization=f"Bearer secret-{ADMIN}-{world.suffix}")
    assert forged.get("/")[0] == 401
    for name, sees_all in ((ADMIN, True), (TENANT, False)):
        basic = urllib3.make_headers(basic_auth=f"{name}:{PASSWORDS[name]}")
        pages = proxy.browser(2, **basic).pages()
        assert f"mine-{world.suffix}" in pages["/claims"]
        assert (f"theirs-{world.suffix}" in pages["/claims"]) is sees_all
