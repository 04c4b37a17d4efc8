"""Visitors of ``kubectl dra ui --sign-in``: the process, browsers, and a cluster with an administrator, a tenant with
rights in one namespace, and a user without rights. One story for the embedded API server and for a real one."""

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import urllib3

from dra_driver.config.status import node_status
from dra_driver.core.errors import NotFoundError
from dra_driver.core.model.gpu_node import GpuNodeStatus, NodeGpu, PublishedForm, ReportedIdle, ReportedUsage
from dra_driver.kube import paths
from dra_driver.kube.connection import Connection
from dra_driver.kube.rest import RestClient
from dra_driver.sim.apiserver.kinds import NAMESPACES
from dra_driver.sim.apiserver.server import ApiServer
from tests.fakes.dra_objects import DRIVER, claim, exactly, gpu, resource_slice
from tests.fakes.rbac import Rules
from tests.fakes.token_gate import TokenGate
from tests.rights.accounts import bound

Obj = dict[str, Any]

PAGES: Final = (
    *("/", "/faults", "/claims", "/namespaces", "/pending", "/capacity", "/topology", "/policies", "/doctor"),
    *("/events", "/what-if"),
)
READ_S: Final = 30.0
ADMIN, TENANT, GUEST = "page-admin", "page-tenant", "page-guest"
GROUP: Final = "rbac.authorization.k8s.io"


@dataclass(frozen=True, kw_only=True)
class World:
    """Names of a run. ``own`` is the tenant's namespace, ``other`` another tenant's."""

    suffix: str = field(default_factory=lambda: os.urandom(3).hex())

    @property
    def own(self) -> str:
        return f"page-own-{self.suffix}"

    @property
    def other(self) -> str:
        return f"page-other-{self.suffix}"

    @property
    def node(self) -> str:
        return f"page-node-{self.suffix}"

    def rights(self) -> list[Obj]:
        """ServiceAccounts in ``own`` with these rights: everything; the namespace and GPUs, read-only; none."""
        everything = {"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}
        core = ["pods", "events", "persistentvolumeclaims", "resourcequotas"]
        inside = [
            {"apiGroups": [""], "resources": core, "verbs": ["list"]},
            {
                "apiGroups": ["resource.k8s.io"],
                "resources": ["resourceclaims", "resourceclaimtemplates"],
                "verbs": ["list"],
            },
        ]
        shared = [
            {"apiGroups": ["gpu.dra-driver.io"], "resources": ["gpunodes"], "verbs": ["list"]},
            {"apiGroups": ["resource.k8s.io"], "resources": ["resourceslices", "deviceclasses"], "verbs": ["list"]},
        ]
        roles = [
            self._role("ClusterRole", f"page-admin-{self.suffix}", [everything]),
            self._role("ClusterRole", f"page-viewer-{self.suffix}", shared),
            self._role("Role", f"page-tenant-{self.suffix}", inside),
        ]
        accounts = [*bound(ADMIN, self.own, roles[0]), *bound(TENANT, self.own, *roles[1:]), *bound(GUEST, self.own)]
        return [*roles, *accounts]

    def _role(self, kind: str, name: str, rules: list[Obj]) -> Obj:
        inside = {"namespace": self.own} if kind == "Role" else {}
        return {"apiVersion": f"{GROUP}/v1", "kind": kind, "metadata": {"name": name, **inside}, "rules": rules}

    def create(self, admin: RestClient, undo: list[str]) -> None:
        """A node with a GPU that is free according to its GpuNode, which names a claim of ``other``; a claim in each
        namespace; a quota, if the API server has them. ``undo`` gets the paths of objects without namespace."""

        def make(path: str, name: str, body: Obj) -> None:
            admin.create(path, body)
            undo.append(f"{path}/{name}")

        make(paths.nodes(), self.node, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": self.node}})
        device = resource_slice(self.node, gpu("gpu-0", productName="NVIDIA H100", type="gpu", uuid=self._uuid))
        make(paths.resource_slices(), device["metadata"]["name"], device)
        head = {"apiVersion": "gpu.dra-driver.io/v1alpha1", "kind": "GpuNode", "metadata": {"name": self.node}}
        make(paths.gpu_nodes(), self.node, head)
        body = {**head, "status": node_status(self._status(), "2026-01-02T12:00:00Z")}
        admin.apply(f"{paths.gpu_nodes(self.node)}/status", body, "test")
        for namespace, name in ((self.own, "mine"), (self.other, "theirs")):
            admin.create(
                paths.resource_claims(namespace), claim(f"{name}-{self.suffix}", exactly(), namespace=namespace)
            )
        quota = {"metadata": {"name": "gpus"}, "spec": {"hard": {f"{DRIVER}.deviceclass.resource.k8s.io/devices": "3"}}}
        with suppress(NotFoundError):
            admin.create(paths.resource_quotas(self.own), {"apiVersion": "v1", "kind": "ResourceQuota", **quota})

    @property
    def _uuid(self) -> str:
        return f"GPU-{self.suffix}"

    def _status(self) -> GpuNodeStatus:
        own = NodeGpu(
            name="gpu-0", uuid=self._uuid, product_name="NVIDIA H100", memory="80Gi", offered_as=(PublishedForm.WHOLE,)
        )
        idle = ReportedIdle(
            namespace=self.other,
            claim=f"theirs-{self.suffix}",
            claim_uid="u",
            since="2026-01-02T11:00:00Z",
            after_min=30,
        )
        return GpuNodeStatus(driver_name=DRIVER, gpus=(own,), usage=ReportedUsage(idle=(idle,)))


@contextmanager
def embedded(world: World, accounts: Iterable[str], folder: Path) -> Iterator[tuple[TokenGate, dict[str, str]]]:
    """The world on the embedded API server behind RBAC, and the token of each of these accounts."""
    api = ApiServer()
    api.start()
    try:
        for name in (world.own, world.other):
            api.store.create(NAMESPACES, {"metadata": {"name": name}})
        admin = api.kubeconfig(folder / "admin.conf")
        world.create(RestClient(Connection.load(str(admin))), [])
        rights, tokens = world.rights(), {name: f"secret-{name}-{world.suffix}" for name in accounts}
        users = {
            token: (f"system:serviceaccount:{world.own}:{name}", Rules(rights, account=name, namespace=world.own))
            for name, token in tokens.items()
        }
        with TokenGate(admin, users) as gate:
            yield gate, tokens
    finally:
        api.stop()


class Browser:
    """Keeps the cookie and the home address of a session, and follows no redirects."""

    def __init__(self, address: str, **headers: str) -> None:
        self.address, self.home, self.cookie = address, "", ""
        self.headers = headers
        self._pool = urllib3.PoolManager(retries=False, timeout=urllib3.Timeout(40.0), cert_reqs="CERT_NONE")

    def get(self, path: str, **headers: str) -> tuple[int, str]:
        return self._send("GET", self.home.rstrip("/") + path, headers)

    def post(self, path: str, fields: Mapping[str, str], **headers: str) -> tuple[int, str]:
        origin = {"origin": self.address, **headers}
        return self._send("POST", path, {k: v for k, v in origin.items() if v}, fields)

    def _send(self, verb: str, path: str, headers: Mapping[str, str], fields: Any = None) -> tuple[int, str]:
        sent = {**self.headers, **({"cookie": self.cookie} if self.cookie else {}), **headers}
        more = {"fields": fields, "encode_multipart": False} if fields is not None else {}
        answer = self._pool.request(verb, self.address + path, headers=sent, redirect=False, **more)
        if given := answer.headers.get("set-cookie"):
            self.cookie = given.partition(";")[0]
        if answer.status == 303:
            self.home = answer.headers["location"]
        return answer.status, answer.data.decode()

    def sign_in(self, token: str, namespaces: str = "") -> tuple[int, str]:
        return self.post("/sign-in", {"token": token, "namespaces": namespaces})

    def pages(self) -> dict[str, str]:
        """Return all pages with the first reading and slow answers."""
        for path in PAGES:
            self.get(path)
        deadline = time.monotonic() + READ_S
        while any(
            f"{word} …" in self.get(path)[1]
            for path in ("/", "/capacity")
            for word in ("Reading the cluster", "Counting")
        ):
            assert time.monotonic() < deadline, "the cluster is not read"
            time.sleep(0.2)
        found = {path: self.get(path) for path in PAGES}
        assert {status for status, _ in found.values()} == {200}
        return {path: text for path, (_, text) in found.items()}


@dataclass
class PageProcess:
    process: subprocess.Popen[str]
    address: str
    log: Path

    def text(self) -> str:
        return self.log.read_text()

    def command_line(self) -> str:
        return Path(f"/proc/{self.process.pid}/cmdline").read_text()


@contextmanager
def page_process(kubeconfig: Path, folder: Path, *flags: str) -> Iterator[PageProcess]:
    log = folder / "page.log"
    command = [sys.executable, "-m", "dra_driver.kubectl.commands.kubectl", "ui", "--sign-in", *flags]
    with log.open("w") as file:
        process = subprocess.Popen(
            [*command, "--kubeconfig", str(kubeconfig)], stdout=subprocess.PIPE, stderr=file, text=True
        )
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            address = re.match(r"http://127\.0\.0\.1:\d+", line)
            assert address, f"{line} {log.read_text()}"
            yield PageProcess(process, address[0], log)
        finally:
            process.terminate()
            process.communicate(timeout=10)


def what_each_sees(
    world: World,
    page: PageProcess,
    tokens: Mapping[str, str],
    revoke: Callable[[str], object],
    say: Callable[[str], None],
) -> None:
    """``tokens`` has one for ADMIN, TENANT and GUEST; ``revoke`` makes that of an account invalid."""
    mine, theirs = f"mine-{world.suffix}", f"theirs-{world.suffix}"
    browsers = {name: Browser(page.address) for name in tokens}
    seen = {}
    for name, browser in browsers.items():
        assert browser.sign_in(tokens[name])[0] == 303, name
        seen[name] = browser.pages()
        shown = [word for word in (mine, theirs, world.node) if any(word in text for text in seen[name].values())]
        say(f"{name} sees {', '.join(shown) or 'nothing'}")
    assert mine in seen[ADMIN]["/claims"]
    assert theirs in seen[ADMIN]["/claims"]
    tenant = seen[TENANT]
    assert mine in tenant["/claims"]
    assert world.node in tenant["/"]
    assert "only namespace" in tenant["/claims"]
    assert re.search(r"NVIDIA H100: \d", tenant["/capacity"]), tenant["/capacity"]
    assert "<b>≤ " in tenant["/"]
    assert ("of 3" in tenant["/namespaces"]) is ("of 3" in seen[ADMIN]["/namespaces"]), tenant["/namespaces"]
    for path, text in tenant.items():
        assert theirs not in text, path
        assert world.other not in text, path
    for path, text in seen[GUEST].items():
        for word in (mine, theirs, world.other, world.node):
            assert word not in text, path
    assert "may not list resourceslices" in seen[GUEST]["/"]
    tried_by_strangers(page, browsers, theirs, say)
    revoke(GUEST)
    deadline = time.monotonic() + READ_S
    while (answer := browsers[GUEST].get("/"))[0] == 200:
        assert time.monotonic() < deadline, "the revoked token still has a session"
        time.sleep(0.3)
    assert "Your token expired or was revoked: sign in again." in answer[1]
    assert browsers[GUEST].sign_in(tokens[GUEST])[0] == 401
    say(f"after revocation of its token {GUEST} gets the sign-in page")
    assert page.process.poll() is None
    for place in (page.text(), page.command_line()):
        assert not [name for name, token in tokens.items() if token in place]
        assert not [name for name, each in browsers.items() if each.cookie.partition("=")[2] in place]


def tried_by_strangers(
    page: PageProcess, browsers: Mapping[str, Browser], secret: str, say: Callable[[str], None]
) -> None:
    """Requests without the right host, origin, cookie or token, and of a tenant for the administrator's pages."""
    admin, tenant = browsers[ADMIN], browsers[TENANT]
    inside = Browser(page.address)
    inside.home, inside.cookie = admin.home, tenant.cookie
    outside = Browser(page.address)
    outside.home = admin.home
    fields = {"token": "no-token-of-this-cluster"}
    tried = {
        "no cookie": outside.get("/claims"),
        "a tenant's cookie on the administrator's address": inside.get("/claims"),
        "a foreign Host": admin.get("/claims", host="gpus.evil.example"),
        "a foreign Origin": admin.get("/claims", origin="http://evil.example"),
        "a form of another origin": Browser(page.address).post("/sign-in", fields, origin="http://evil.example"),
        "a form without Origin": Browser(page.address).post("/sign-in", fields, origin=""),
        "a token that is not valid": Browser(page.address).post("/sign-in", fields),
        "a token in Authorization that is not valid": Browser(page.address, authorization="Bearer x").get("/"),
        "a sign-in of 1 MiB": Browser(page.address).post("/sign-in", {"token": "x" * 2**20}),
    }
    wanted = (401, (200, 404), 421, 403, 403, 403, 401, 401, 413)
    for (what, (status, text)), expected in zip(tried.items(), wanted, strict=True):
        say(f"{what}: {status}")
        assert status in (expected if isinstance(expected, tuple) else (expected,)), what
        assert secret not in text, what
    assert admin.get("/claims")[0] == 200
