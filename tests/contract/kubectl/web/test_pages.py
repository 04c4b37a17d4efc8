"""The pages: content of good, absent and hostile objects, and no object that only garbage collection would free."""

import asyncio
import gc
import re
import threading
import weakref
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from dra_driver.core.errors import ApiUnreachableError
from dra_driver.core.model.gpu_node import ReportedIdle, ReportedOverGrant, ReportedUnattributed, ReportedUsage
from dra_driver.core.model.usage_rules import OverGrantAction
from dra_driver.kube.state import ClusterState
from dra_driver.kubectl.capacity import LEGEND
from dra_driver.kubectl.usage.device_use import ClaimDeviceUse, GpuMemory
from dra_driver.kubectl.web.reading import Periodic
from dra_driver.kubectl.web.rows import EXAMPLE, MAX_BYTES
from dra_driver.kubectl.web.use_history import UseSample
from tests.contract.kubectl.web.conftest import HOST, Site
from tests.unit.kubectl.web.objects import (
    DRIVER,
    GIB,
    UNHEALTHY,
    claim,
    partition,
    share,
    slice_of,
    small_state,
    told,
    told_gpu,
    waiting_pod,
    whole,
)
from tests.unit.kubectl.web.test_fleet import placed

if TYPE_CHECKING:
    from starlette.testclient import TestClient


LISTS = (
    *("/", "/claims", "/pending", "/capacity", "/events", "/faults", "/namespaces", "/topology", "/policies"),
    *("/doctor", "/what-if"),
)
PAGES = (*LISTS, "/nodes/n", "/nodes/n/gpu-0", "/claims/team/a", "/pending/team/w")
HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>{{7*7}}\u202e"
CLASS = {"metadata": {"name": DRIVER}, "spec": {"selectors": [{"cel": {"expression": f"device.driver == '{DRIVER}'"}}]}}
ABOUT = {"kind": "Pod", "namespace": "team", "name": "w"}
EVENT = {"reason": "FailedScheduling", "message": "no", "involvedObject": ABOUT, "metadata": {}}


def full_state() -> ClusterState:
    held = claim("a", "n", share("gpu-0", "20Gi"))
    return small_state(held, pods=(waiting_pod("w"),), events=(EVENT,), classes=(CLASS,))


@pytest.mark.parametrize("path", ["/claims/team/a", "/nodes/n/gpu-0"])
def test_charts_stay_when_the_current_use_is_missing(path: str, site: Site, browser: "TestClient") -> None:
    use = ClaimDeviceUse(namespace="team", claim="a", node="n", device="gpu-0", share="s", used_bytes=5 * GIB)
    for uses in ([use], [use], []):
        site.uses = uses
        site.read(full_state())
    assert 'class="lines' in browser.get(f"{site.base}{path}").text


def test_every_page_is_there(site: Site, browser: "TestClient") -> None:
    """Request each page twice: the second response contains the slow answers."""
    site.read(full_state(), n=told(told_gpu("gpu-0", "GPU-0", policy="pool")))
    for _ in range(2):
        texts = {path: browser.get(f"{site.base}{path}") for path in PAGES}
        site.read(site.state, **site.told)
    assert {path: answer.status_code for path, answer in texts.items()} == dict.fromkeys(PAGES, 200)
    for path, part in (
        ("/", "pool"),
        ("/nodes/n/gpu-0", "20 % compute"),
        ("/claims", "20.0 GiB"),
        ("/pending", "which does not exist"),
        ("/capacity", "NVIDIA H100"),
        ("/capacity", LEGEND),
        ("/events", "FailedScheduling"),
    ):
        assert part in texts[path].text, (path, texts[path].text)


def test_use_is_shown_against_the_grant(site: Site, browser: "TestClient") -> None:
    use = ClaimDeviceUse(namespace="team", claim="a", node="n", device="gpu-0", share="s", used_bytes=25 * GIB)
    site.uses = [use]
    site.read(full_state())
    text = browser.get(f"{site.base}/nodes/n/gpu-0").text
    assert "25.0 GiB" in text
    assert "125 % of the grant" in text
    assert "meter over" in text


def test_gpu_memory_is_shown_as_sum(site: Site, browser: "TestClient") -> None:
    site.memory = [
        GpuMemory(
            node="n", device="gpu-0", total_bytes=80 * GIB, used_bytes=23 * GIB, claims_bytes=20 * GIB,
            unattributed_bytes=2 * GIB, unattributed_processes=3,
        )
    ]  # fmt: skip
    site.read(full_state())
    text = " ".join(browser.get(f"{site.base}/nodes/n/gpu-0").text.split())
    assert "2.0 GiB (3)" in text
    assert '<span class="quiet">?</span> = 23.0 GiB of 80.0 GiB' in text


def test_the_use_of_a_whole_gpu_is_drawn_over_time(site: Site, browser: "TestClient") -> None:
    used: dict[str, Any] = {"used_bytes": 20 * GIB, "busy_ratio": 0.5, "power_watts": 320.4}
    site.memory = [GpuMemory(node="n", device="gpu-0", total_bytes=80 * GIB, **used)]
    for _ in range(2):
        site.read(plain_state())
    text = browser.get(f"{site.base}/nodes/n/gpu-0").text
    words = re.findall(r'aria-label="([^"]* of gpu-0: [^"]*)"', text)
    assert words == [
        "Memory of gpu-0: 20.0 GiB of 80.0 GiB in total",
        "Utilization of gpu-0: 50 % ",
        "Power of gpu-0: 320 W ",
    ]
    assert re.findall(r'<polyline points="[0-9.]+,([0-9.]+) [0-9.]+,[0-9.]+"/>', text) == ["75.00", "50.00", "35.92"]
    assert re.search(r'data-points="[0-9.]+\|75.0\|20.0 GiB;[0-9.]+\|75.0\|20.0 GiB"', text)
    for tick in (">80.0 GiB<", ">40.0 GiB<", ">100 %<", ">50 %<", ">500 W<", ">0 W<"):
        assert tick in text


def test_the_thread_that_reads_ranges_from_prometheus_starts(site: Site) -> None:
    computed = threading.Event()
    site.sources.start()
    try:
        site.sources.past_results.ask("range", 1, computed.set)
        assert computed.wait(5.0)
    finally:
        site.sources.stop(2.0)


def test_a_longer_range_is_read_from_prometheus(site: Site, browser: "TestClient") -> None:
    """A slow or failing Prometheus delays only this range."""
    site.memory = [GpuMemory(node="n", device="gpu-0", total_bytes=80 * GIB, used_bytes=20 * GIB)]
    site.read(plain_state())
    address = f"{site.base}/nodes/n/gpu-0?range=7d"
    assert "Reading from Prometheus" in browser.get(address).text
    before = GpuMemory(node="n", device="gpu-0", used_bytes=10 * GIB)
    site.past = [UseSample(datetime.now(UTC) - timedelta(days=1), {}, {("n", "gpu-0"): before})]
    assert site.sources.past_results.compute_one()
    assert site.asked == [(604_800, {"node": "n"})]
    text = browser.get(address).text
    assert "no data since" in text
    assert re.search(r'data-points="85.[0-9]+\|87.5\|10.0 GiB"', text)
    site.past = ApiUnreachableError("no answer")
    browser.get(f"{site.base}/nodes/n/gpu-0?range=6h")
    while site.sources.past_results.compute_one():  # 7d again, if a minute has passed
        pass
    assert "no answer" in browser.get(f"{site.base}/nodes/n/gpu-0?range=6h").text


def test_use_that_is_not_renewed_is_dated(site: Site, browser: "TestClient") -> None:
    site.use_age = timedelta(hours=1)
    site.memory = [GpuMemory(node="n", device="gpu-0", busy_ratio=0.5)]
    site.read(plain_state())
    for path in ("/", "/nodes/n", "/nodes/n/gpu-0", "/namespaces"):
        assert "Usage data is of" in browser.get(f"{site.base}{path}").text


def test_many_nodes_are_a_heat_map(site: Site, browser: "TestClient") -> None:
    long = "x" * 240
    names = [f"{long}-{index}" for index in range(13)]
    slices = tuple(slice_of(name, whole("gpu-0", name)) for name in names)
    site.read(small_state(slices=slices, nodes=()), **{names[3]: told(told_gpu("gpu-0", names[3], health=UNHEALTHY))})
    site.memory = [GpuMemory(node=names[5], device="gpu-0", busy_ratio=0.5, used_bytes=GIB, total_bytes=80 * GIB)]
    text = browser.get(f"{site.base}/").text
    assert re.findall(r"<i class=\"(\w)\"></i></a>", text) == ["f", *"e" * 12]
    site.read(site.state, **site.told)
    text = browser.get(f"{site.base}/?sort=name").text
    assert re.findall(r"<i class=\"(\w+)\"></i></a>", text) == [*"uuu", "f", "u", "h3", *"u" * 7]
    assert tiles(text)[:6] == ["13", "1", "12", "0 %", "50 %", "1 %"]
    assert "1 of 13 known" in text
    found = browser.get(f"{site.base}/?show=unhealthy").text
    assert re.findall(r'aria-labelledby="node-(\d+)"', found) == ["1"]


def test_claims_are_sorted_and_filtered(site: Site, browser: "TestClient") -> None:
    both = claim("a", "n", share("gpu-0", "20Gi")), claim("b", "n", namespace="other")
    both[1]["spec"]["devices"]["requests"][0]["exactly"]["selectors"] = [{"cel": {"expression": "device.x > <1>"}}]
    site.read(small_state(*both))
    order = {sort: browser.get(f"{site.base}/claims?sort={sort}").text for sort in ("granted", "name", "state")}
    first = {sort: re.findall(r'/claims/(?:team|other)/(\w)"', text) for sort, text in order.items()}
    assert first == {"granted": ["a", "b"], "name": ["b", "a"], "state": ["b", "a"]}
    assert 'aria-sort="descending"' in order["granted"]
    assert "device.x &gt; &lt;1&gt;" in order["name"]
    one = browser.get(f"{site.base}/claims?namespace=other").text
    assert re.findall(r'/claims/(?:team|other)/(\w)"', one) == ["b"]


def test_namespaces_sum_claims_and_idle_ones(site: Site, browser: "TestClient") -> None:
    idle = ReportedIdle(namespace="team", claim="a", claim_uid="u", since="x", after_min=5)
    site.read(full_state(), n=replace(told(), usage=ReportedUsage(idle=(idle,))))
    text = browser.get(f"{site.base}/namespaces").text
    cells = re.findall(r'data-label="([\w ]+)">(?:<[^>]+>)*([^<\s]*)', text)
    assert cells[:8] == [
        ("Namespace", "team"), ("Claims", "1"), ("Devices", "1"), ("Granted GiB", "20.0"), ("Used GiB", "?"),
        ("Busy", "?"), ("Idle", "1"), ("Waiting", "1"),
    ]  # fmt: skip


def test_usage_gaps_are_shown(site: Site, browser: "TestClient") -> None:
    site.gaps = [f"node n: its exporter does not answer {HOSTILE}"]
    site.read(full_state())
    for path in ("/claims", "/nodes/n/gpu-0"):
        text = browser.get(f"{site.base}{path}").text
        assert "&lt;script&gt;" in text


def test_linked_gpus_and_their_places_are_shown(site: Site, browser: "TestClient") -> None:
    pair = (placed(f"gpu-{number}", island="A", numa=number, clique="fabric.1") for number in range(2))
    site.read(small_state(slices=(slice_of("n", *pair),)))
    gpu, node = (browser.get(f"{site.base}{path}").text for path in ("/nodes/n/gpu-0", "/nodes/n"))
    assert re.search(r"<dt>NVLink</dt><dd>pair with <a [^>]*>gpu-1</a></dd>", gpu)
    assert "fabric.1</span>, 2 GPUs on 1 node</dd>" in gpu
    assert "<dt>NUMA node</dt><dd>0</dd>" in gpu
    assert re.search(r"NVLink: pair</span> <a [^>]*>gpu-0</a>, <a [^>]*>gpu-1</a>", node)
    assert "pci0000:10" in node


def test_watchdog_findings_are_shown_on_gpu_and_node(site: Site, browser: "TestClient") -> None:
    """As sentences; an idle claim may be on several GPUs, so it stands on the node."""
    over = ReportedOverGrant(
        namespace="team", claim="a", claim_uid="u", gpu="gpu-0", pods=(), used="20Gi", granted="12Gi", processes=1,
        since="2026-01-01T00:00:00Z", action=OverGrantAction.EVICT, grace_s=30,
    )  # fmt: skip
    foreign = ReportedUnattributed(gpu="gpu-0", processes=2, memory=None, since="x", commands=(HOSTILE,))
    idle = ReportedIdle(namespace="team", claim="b", claim_uid="v", since="y", after_min=5)
    usage = ReportedUsage(over_grant=(over,), unattributed=(foreign,), idle=(idle,))
    site.read(full_state(), n=replace(told(told_gpu("gpu-0", "GPU-0")), usage=usage))
    gpu, node = (browser.get(f"{site.base}{path}").text for path in ("/nodes/n/gpu-0", "/nodes/n"))
    for text in (gpu, node):
        assert "20.0 GiB of 12.0 GiB since 2026-01-01 00:00 UTC" in text
        assert "2 processes" in text
        assert HOSTILE not in text
    assert "team/b has been idle" in node
    assert "team/b has been idle" not in gpu


def test_object_is_not_missing_before_the_first_reading(site: Site, browser: "TestClient") -> None:
    for path in ("/nodes/n", "/nodes/n/gpu-0", "/claims/team/a"):
        answer = browser.get(f"{site.base}{path}")
        assert (answer.status_code, "Not read yet" in answer.text) == (503, True), path
    assert browser.get(f"{site.base}/none").status_code == 404


def test_page_of_deleted_object_is_404(site: Site, browser: "TestClient") -> None:
    site.read(full_state())
    for path in ("/nodes/x", "/nodes/n/gpu-9", "/claims/team/x", "/pending/team/x", "/nope"):
        answer = browser.get(f"{site.base}{path}")
        assert answer.status_code == 404, path
        assert "Back to the fleet" in answer.text


def number_of(page: str) -> str:
    return str(re.findall(r'<div id="live" data-number="([^"]+)"', page)[0])


def announced(site: Site, cookie: str) -> list[str]:
    """The first state that the stream of a page names: number, age, time and problem."""

    async def story() -> bytes:
        found = asyncio.get_running_loop().create_future()

        async def receive() -> dict[str, str]:
            await asyncio.shield(found)
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            if b"event: state" in message.get("body", b"") and not found.done():
                found.set_result(message["body"])

        headers = [(b"host", HOST.encode()), (b"cookie", cookie.encode())]
        path = {"path": f"{site.base}/live", "root_path": "", "query_string": b"", "headers": headers}
        await site.app({"type": "http", "method": "GET", "state": {}, **path}, receive, send)
        return bytes(found.result())

    return asyncio.run(story()).decode().split("data: ")[1].split()


class Overtaken(Periodic[Any]):
    """Reads again whenever a page took the last reading."""

    def asked(self) -> Any:
        found = super().asked()
        self.once()
        return found


def test_a_reading_between_page_and_connection_is_announced(site: Site, browser: "TestClient") -> None:
    cookie = f"dra_ui={browser.cookies['dra_ui']}"
    site.read(full_state())
    for path in ("/", "/capacity", "/nodes/n/gpu-0"):
        number = number_of(browser.get(f"{site.base}{path}").text)
        assert announced(site, cookie)[0] == number, path
        site.read(small_state(claim(f"for{path}", "n")))
        assert announced(site, cookie)[0] != number, path
    answered = number_of(browser.get(f"{site.base}/capacity").text)
    assert site.sources.background_results.compute_one()
    assert announced(site, cookie)[0] != answered


def test_a_page_never_has_the_number_of_a_state_that_it_does_not_show() -> None:
    site = Site(Overtaken)
    with site.opened() as browser:
        site.read(full_state())
        site.state = small_state()
        page = browser.get(f"{site.base}/claims").text
        assert "/claims/team/a" in page
        assert announced(site, f"dra_ui={browser.cookies['dra_ui']}")[0] != number_of(page)


def test_unreachable_server_is_shown_with_last_state(site: Site, browser: "TestClient") -> None:
    site.age = timedelta(minutes=3)
    site.read(full_state())
    site.failure = ApiUnreachableError("connection refused <b>")
    site.sources.cluster.once()
    text = browser.get(f"{site.base}/").text
    assert re.search(r"Cannot read the cluster since <time [^>]+>\d\d:\d\d:\d\d UTC", text)
    assert re.search(r"below was read at <time [^>]+>\d\d:\d\d:\d\d UTC</time>, 3m before this page", text)
    assert "connection refused &lt;b&gt;" in text
    assert "gpu-0" in text
    number, age, _, *problem = announced(site, f"dra_ui={browser.cookies['dra_ui']}")
    assert (number, 180 <= int(age) < 200, problem) == (number_of(text), True, ["readings", "fail"])
    site.failure = None
    site.read()
    assert "Cannot read the cluster since" not in browser.get(f"{site.base}/").text


def test_a_state_that_no_reading_replaces_is_called_old(site: Site, browser: "TestClient") -> None:
    """No reader for hours, or the API server does not end its answer."""
    site.age = timedelta(hours=3)
    site.read(full_state())
    text = browser.get(f"{site.base}/").text
    assert "was read 3h before this page" in text
    assert "UTC, 3h old" in text
    assert announced(site, f"dra_ui={browser.cookies['dra_ui']}")[3] == "old"
    site.age = timedelta()
    site.sources.cluster.once()  # the same objects
    fresh = browser.get(f"{site.base}/").text
    assert "before this page" not in fresh
    assert number_of(fresh) != number_of(text)


def test_numbers_about_use_say_of_when_they_are(site: Site, browser: "TestClient") -> None:
    site.uses = [ClaimDeviceUse(namespace="team", claim="a", node="n", device="gpu-0", used_bytes=25 * GIB)]
    site.read(full_state())
    site.use_failure = ApiUnreachableError("no answer <b>")
    site.read()
    for path in ("/claims", "/claims/team/a", "/nodes/n/gpu-0"):
        text = browser.get(f"{site.base}{path}").text
        assert re.search(
            r"Usage data unavailable since <.*>[\d:]+ UTC</time>; the numbers below are from <.*>[\d:]+ UTC</time>: no",
            text,
        )


def test_pages_before_first_reading_show_progress(site: Site, browser: "TestClient") -> None:
    for path in PAGES:
        assert browser.get(f"{site.base}{path}").status_code in (200, 503)
    assert "Reading the cluster" in browser.get(f"{site.base}/").text


def plain_state() -> ClusterState:
    """A node with one GPU, free."""
    return small_state(slices=(slice_of("n", whole("gpu-0", "GPU-0")),), classes=(CLASS,))


def hostile_state(text: str = HOSTILE) -> ClusterState:
    bad: Any = claim(text, text, share(text, "20Gi"), namespace=text)
    node = {"metadata": {"name": text}}
    gpu = whole(text, text, allowMultipleAllocations=True, taints=[{"key": text, "effect": text}])
    gpu["attributes"]["productName"]["string"] = text
    pool = {"name": text, "generation": 1, "resourceSliceCount": 1}
    item = {"metadata": {"name": "s"}, "spec": {"driver": DRIVER, "nodeName": text, "pool": pool, "devices": [gpu]}}
    about = {"kind": text, "namespace": text, "name": text}
    event = {"metadata": {}, "reason": text, "message": text, "involvedObject": about}
    pods = (waiting_pod(text, text, owner=text),)
    return ClusterState(nodes=(node,), slices=(item,), claims=(bad,), pods=pods, events=(event,), gaps=(text,))


@pytest.fixture
def hostile(site: Site, browser: "TestClient") -> "tuple[Site, TestClient]":
    ill = told_gpu(HOSTILE, HOSTILE, policy=HOSTILE, health=UNHEALTHY, causes=(HOSTILE,), message=HOSTILE)
    site.read(hostile_state(), **{HOSTILE: told(ill, problem=HOSTILE)})
    return site, browser


def test_hostile_names_are_text(hostile: "tuple[Site, TestClient]") -> None:
    site, browser = hostile
    links = {*LISTS[:-1], f"/?q={HOSTILE}", f"/claims?q={HOSTILE}&show={HOSTILE}"}
    pages = [browser.get(f"{site.base}{path}") for path in links]
    site.read(site.state, **site.told)
    found = {link for page in pages for link in re.findall(r'href="([^"]+)"', page.text) if "alert" in link}
    pages += [browser.get(link.replace("&amp;", "&")) for link in found]
    manifest = f"kind: ResourceClaim\nmetadata: {{name: '{HOSTILE.replace(chr(39), '')}'}}"
    pages.append(_posted(site, browser, manifest=manifest, namespace=HOSTILE))
    assert len(found) >= 4
    for page in pages:
        assert page.status_code in (200, 404)
        assert "<script>alert" not in page.text
        assert "<img" not in page.text
        assert "\u202e" not in page.text
        assert "49" not in re.findall(r"onerror=alert\(2\)&gt;(\d+)", page.text)
        assert len(re.findall(r"<script", page.text)) <= 1
        assert " style=" not in page.text
        assert not re.search(r"\son[a-z]+=[\"']", page.text)


def grant_of(quantity: Any) -> ClusterState:
    shared = whole("gpu-0", "GPU-0", memory=quantity, allowMultipleAllocations=True)
    return small_state(claim("a", "n", share("gpu-0", quantity, quantity)), slices=(slice_of("n", shared),))


def long_state() -> ClusterState:
    pod, held = waiting_pod("w"), claim("a", "n", *(share("gpu-0", "1Gi") for _ in range(32)))
    pod["status"]["conditions"] = [{"type": "PodScheduled", "status": "False", "message": "x" * (1 << 20)}]
    held["status"]["reservedFor"] = [{"resource": "pods", "name": f"{at:0253}"} for at in range(256)]
    events = tuple({**EVENT, "message": "x" * (1 << 20)} for _ in range(50))
    return small_state(held, events=events, pods=(pod,))


@pytest.mark.parametrize(
    "state",
    [*(pytest.param(grant_of(each), id=each[:9]) for each in ("1e1000", "-1e1000", "9E", "1n", "NaN")), long_state()],
)
def test_sizes_that_no_gpu_has_and_long_texts_end_no_page(site: Site, browser: "TestClient", state: Any) -> None:
    site.read(replace(state, classes=(CLASS,)))
    for _ in range(2):
        pages = [browser.get(f"{site.base}{path}") for path in PAGES]
        site.read(site.state)
    assert site.sources.cluster.trouble is None
    assert {page.status_code for page in pages if "/pending/" not in str(page.url)} == {200}
    assert max(len(page.text) for page in pages) < 1 << 19
    assert "Error" not in "".join(page.text for page in pages if "/doctor" not in str(page.url))


def test_trial_page_matches_explain(site: Site, browser: "TestClient") -> None:
    site.read(plain_state())
    assert "fits" in _tried(site, browser, EXAMPLE)
    assert "cannot fit" in _tried(site, browser, EXAMPLE.replace("40Gi", "400Gi"))


def test_failing_trial_completes_the_page(site: Site, browser: "TestClient") -> None:
    site.read(replace(plain_state(), classes=({"metadata": {"name": "gpu.nvidia.com"}, "spec": 7},)))
    page = _tried(site, browser, EXAMPLE)
    assert "This trial failed" in page
    assert "</html>" in page


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "no Pod"),
        ("kind: [", "YAML"),
        ("just text", "expected"),
        ("kind: Pod\nmetadata: {name: a}\nspec: 7", "spec"),
        ("kind: Pod\nmetadata: 7\nspec: {containers: []}", "metadata: expected an object"),
        ("kind: Job\nmetadata: [a]\nspec: {}", "metadata: expected an object"),
        ("a: &a [x, x, x]\n" + "".join(f"b{n}: &b{n} [*a, *a, *a, *a]\n" for n in range(20)), "no kind"),
        ("k0: &k0 [1]\n" + "".join(f"k{n}: &k{n} [{f'*k{n - 1}, ' * 4}]\n" for n in range(1, 20)), "aliases"),
        ("x" * (MAX_BYTES + 1), "KiB"),
        pytest.param("[" * 60_000, "nested more than 100 levels", id="deep"),  # ended the process once
        (EXAMPLE.replace("40Gi", "much"), "much"),
        ("kind: Job\nmetadata: {name: a}\nspec: {parallelism: 60, template: {spec: {containers: []}}}", "the limit is"),
    ],
)
def test_trial_page_rejects_invalid_manifests(site: Site, browser: "TestClient", text: str, sentence: str) -> None:
    site.read(plain_state())
    assert sentence in _tried(site, browser, text)


def test_the_pasted_text_comes_back_as_it_was(site: Site, browser: "TestClient") -> None:
    site.read(plain_state())
    text = "kind: Pod\r\nmetadata:\t{name: \u202ea}\r\n"
    answer = _posted(site, browser, manifest=text)
    shown = re.search(r"<textarea[^>]*>(.*?)</textarea>", answer.text, re.DOTALL)
    assert shown is not None
    assert shown[1] == text.replace("\u202e", "?")


def test_a_form_that_is_too_large_is_refused(site: Site, browser: "TestClient") -> None:
    answer = _posted(site, browser, manifest="x" * 300_000)
    assert answer.status_code == 413


def tiles(page: str) -> list[str]:
    """GPUs, faults, free, allocated, busy, memory used, power, waiting."""
    return re.findall(r"<b>([^<]*)</b><span class=\"(?:key[^\"]*)?\">", page)


def test_unread_kinds_are_unknown_and_not_zero(site: Site, browser: "TestClient") -> None:
    """Free, healthy, none and 0 appear only for objects that were read."""
    assert tiles(browser.get(f"{site.base}/").text) == ["?"] * 8
    site.read(replace(full_state(), slices=(), gaps=("resourceslices: no", "gpunodes: no", "events: no")))
    fleet = browser.get(f"{site.base}/?show=free").text
    assert tiles(fleet) == ["?"] * 7 + ["1"]
    assert "Free GPUs are unknown" in fleet
    assert "The health of GPUs is unknown" in browser.get(f"{site.base}/?show=unhealthy").text
    assert "Unknown: events cannot be read" in browser.get(f"{site.base}/claims/team/a").text
    two = whole("gpu-0", "GPU-0"), whole("gpu-1", "GPU-1")
    held = claim("a", "n", {"device": "gpu-1"})
    site.read(
        small_state(held, slices=(slice_of("n", *two),), gaps=("resourceclaims: only of team",), classes=(CLASS,))
    )
    fleet, free, taken, node, _ = (
        " ".join(browser.get(f"{site.base}{path}").text.split())
        for path in ("/", "/nodes/n/gpu-0", "/nodes/n/gpu-1", "/nodes/n", "/capacity")
    )
    assert tiles(fleet) == ["2", "0", "?", "?", "?", "?", "?", "0"]
    assert "its claims are unknown · health unknown" in fleet
    assert "at least 100 % held · 1 claim · health unknown" in fleet
    assert "Its claims are unknown." in free
    assert 'class="unknown"' in free
    assert "<dt>Policy</dt><dd>unknown</dd>" in taken
    assert node.count("Unknown: cannot read its GpuNode.") == 2
    site.read(site.state)
    capacity = browser.get(f"{site.base}/capacity").text
    assert "free and fitting devices are unknown" in capacity
    assert "free</li>" not in capacity


def test_sizes_that_are_not_published_are_unknown(site: Site, browser: "TestClient") -> None:
    gpu = whole("gpu-0", "GPU-0", memory="much", allowMultipleAllocations=True)
    both = claim("b", "n", share("gpu-0", "-1Gi"), {"device": "gpu-9"}) | {
        "metadata": {"name": "b", "namespace": "team"}
    }
    site.uses = [
        ClaimDeviceUse(namespace="team", claim="b", node="n", device=name, used_bytes=GIB)
        for name in ("gpu-0", "gpu-9")
    ]
    site.read(small_state(both, slices=(slice_of("n", gpu),)))
    fleet, one, claims, shown = (
        " ".join(browser.get(f"{site.base}{path}").text.split())
        for path in ("/", "/nodes/n/gpu-0", "/claims", "/claims/team/b")
    )
    assert "held, amount unknown · 1 claim" in fleet
    assert "held, amount unknown" in one
    assert "0 % " not in one.replace("100 % compute", "").replace("20 % compute", "")
    for text in (one, shown):
        assert 'data-label="Granted"><span class="quiet">?</span>' in text
        assert "of the grant" not in text
    assert "of the grant" not in claims
    assert 'data-label="Age">?<' in claims


def test_claim_shows_lost_gpu_or_node_once(site: Site, browser: "TestClient") -> None:
    ill = told_gpu("gpu-0", "GPU-0", health=UNHEALTHY, causes=("lost", "xid"), message="It is lost. <Reboot> the node.")
    held = claim("a", "n", share("gpu-0", "20Gi"), {"device": "gpu-0-mig-1g10gb-19-6"})
    site.read(small_state(held), n=told(ill))
    for path, times in (("/claims", 1), ("/claims/team/a", 1), ("/nodes/n/gpu-0", 1)):
        assert browser.get(f"{site.base}{path}").text.count("It is lost. &lt;Reboot&gt; the node.") == times, path
    assert "lost, xid · 38 % held" in " ".join(browser.get(f"{site.base}/").text.split())
    site.read(small_state(held, nodes=({"metadata": {"name": "other"}},)))
    assert "node n: this node does not exist" in browser.get(f"{site.base}/claims/team/a").text


def test_lists_are_paged_and_searched(site: Site, browser: "TestClient") -> None:
    site.read(small_state(*(claim(f"claim-{number:03}", "n") for number in range(100))))
    first, last = browser.get(f"{site.base}/claims").text, browser.get(f"{site.base}/claims?page=2").text
    assert ("claim-049" in first, "claim-050" in first, "claim-050" in last) == (True, False, True)
    found = browser.get(f"{site.base}/claims?q=CLAIM-07+team").text
    assert ("claim-077" in found, "claim-001" in found) == (True, False)
    assert "No claim matches" in browser.get(f"{site.base}/claims?q=nothing").text


def test_pages_can_be_used_without_a_mouse_and_without_seeing(site: Site, browser: "TestClient") -> None:
    """Language, one main, one first heading, a way past the menu, the current page, words for each picture."""
    site.read(full_state())
    for path in PAGES:
        text = browser.get(f"{site.base}{path}").text
        assert '<html lang="en"' in text
        assert text.count("<main") == text.count("<h1") == 1, path
        assert 'href="#main"' in text
        assert 'aria-current="page"' in text, path
        outer = re.findall(r'<svg class="(?:bar|meter|chart)[^>]*>', text)
        assert all("aria-label=" in each and 'role="img"' in each for each in outer)
        fields = re.findall(r'<(?:input|textarea)(?![^>]*type="hidden")[^>]*id="(\w+)"', text)
        assert all(f'for="{field}"' in text for field in fields)


def _posted(site: Site, browser: "TestClient", **data: str) -> Any:
    return browser.post(f"{site.base}/what-if", data=data, headers={"origin": f"http://{HOST}"})


def _tried(site: Site, browser: "TestClient", text: str) -> str:
    answer = _posted(site, browser, manifest=text, namespace="team")
    assert "</html>" in answer.text
    return re.sub("<textarea.*</textarea>", "", answer.text, flags=re.DOTALL)


class Watched(dict[str, Any]):
    """An object of the cluster to which weak references can be made."""


@pytest.fixture
def no_collection() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_collection")
def test_an_old_state_is_freed_without_collection(site: Site, browser: "TestClient") -> None:
    """Slices, claims and pods, after every page showed them; capacity and explanations were computed of them."""
    watched = _read_and_look(site, browser)
    site.read(small_state())
    for path in PAGES:
        browser.get(f"{site.base}{path}")
    site.read(small_state(claim("other", "n")))
    assert [kind for kind, found in watched.items() if found() is not None] == []


def _read_and_look(site: Site, browser: "TestClient") -> dict[str, "weakref.ref[Watched]"]:
    devices = whole("gpu-0", "GPU-0", counter_set="c"), partition("gpu-0-mig-1", "GPU-0", "1g.10gb", (6, 1), "c")
    pod = waiting_pod("w")
    pod["spec"]["resourceClaims"][0]["resourceClaimName"] = "w"
    found = {
        "slice": Watched(slice_of("n", *devices, of=2)),
        "claim": Watched(claim("a", "n", share("gpu-0", "20Gi"))),
        "waiting claim": Watched(claim("w", "n")),
        "pod": Watched(pod),
    }
    counters = slice_of("n", sets=("c",), of=2)
    parts: dict[str, Any] = {"slices": (counters, found["slice"]), "pods": (found["pod"],), "classes": (CLASS,)}
    site.read(small_state(found["claim"], found["waiting claim"], **parts))
    for _ in range(2):
        for path in PAGES:
            browser.get(f"{site.base}{path}")
        site.read(site.state)
    assert "gpu-0" in browser.get(f"{site.base}/pending/team/w").text
    return {kind: weakref.ref(each) for kind, each in found.items()}
