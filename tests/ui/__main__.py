"""Open every page in Debian's Chromium, check it, and write the pictures of docs/pictures: ``make ui-shots``. Fails
when a page does not open, is wider than its window, cuts a table, writes an error to the browser's console, requests
another origin, has a serious finding of axe-core (of npm, in the environment variable AXE), or does not answer to keys,
the pointer and its buttons."""

import json
import os
import re
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from queue import SimpleQueue
from typing import Any
from urllib.parse import urlsplit

from msgspec import Struct
from selenium import webdriver
from selenium.common.exceptions import StaleElementReferenceException
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from dra_driver.core.errors import UnauthorizedError
from dra_driver.kube.kubeconfig import Kubeconfig
from dra_driver.kube.state import ClusterState
from dra_driver.kubectl.commands.source import client
from dra_driver.kubectl.commands.usage_source import ask_exporters
from dra_driver.kubectl.web.app import PageSources
from dra_driver.kubectl.web.reading import FileSource, LiveSource, ReadsCluster
from dra_driver.kubectl.web.serve import serve, serve_visitors
from tests.harness.figures import rss_mib
from tests.ui import large
from tests.ui.scene import scene

ROOT = Path(__file__).parents[2]
PICTURES = ROOT / "docs" / "pictures"
SHOWN = (ROOT / "docs" / "ui.md").read_text(encoding="utf-8")
MAX_BYTES = 200_000
SIZES = {"wide": (1280, 860), "narrow": (420, 860)}
SMALL = {
    "fleet": "/",
    "node": "/nodes/gpu-b",
    "gpu": "/nodes/gpu-b/gpu-0",
    "claims": "/claims",
    "namespaces": "/namespaces",
    "waiting": "/pending",
    "explained": "/pending/default/no-match",
    "what-if": "/what-if",
    "capacity": "/capacity",
    "topology": "/topology",
    "policies": "/policies",
    "doctor": "/doctor",
    "events": "/events",
}
LARGE = {
    "large-fleet": "/",
    "large-pools": "/?group=pool&color=memory",
    "large-faults": "/faults",
    "large-node": "/nodes/node-13",
    "large-claim": "/claims/team-1/train-13-3",
    "large-events": "/events",
}
EMPTY = {"empty-fleet": "/", "empty-claims": "/claims"}
HUGE = {"huge-fleet": "/"}
SIGN_IN = {"sign-in": ""}
DARK = ("gpu", "explained", "capacity", "large-pools")
_IS_CUT = """
const parts = [...document.querySelectorAll(".scroll, table")];
return parts.some((each) => each.scrollWidth > each.clientWidth + 1);
"""
_ORIGINS = """
const every = performance.getEntriesByType("resource").map((each) => each.name);
return [...every, location.href].map((each) => new URL(each).origin);
"""
_AXE = """
const done = arguments[arguments.length - 1];
// All nodes of a map are alike; axe-core would need minutes for 10,000 of them.
document.querySelectorAll(".map > :nth-child(n+20)").forEach((each) => each.remove());
axe.run({ resultTypes: ["violations"] }).then((found) => done(JSON.stringify(
  found.violations.map((each) => [each.impact, each.id, each.nodes.length, each.nodes[0].html.slice(0, 160)]))));
"""


class Site(Struct):
    """Pages of one fleet with their names; ``settle_s`` is the time for charts and background answers. Without a source
    visitors sign in."""

    source: ReadsCluster | None
    pages: dict[str, str]
    read_use: Callable[[], Any] | None = None
    taken: str = ""
    settle_s: float = 5.0


def main() -> int:
    moment = datetime.now(UTC) - timedelta(minutes=25)
    large.SINCE = f"{moment:%Y-%m-%dT%H:%M:%SZ}"
    problems: list[str] = []
    browser = _browser()
    try:
        with tempfile.TemporaryDirectory() as folder, scene(ROOT, Path(folder), usage=True) as cluster:
            kubeconfig = Kubeconfig(path=str(cluster.kubeconfig))
            exporters = client(kubeconfig)
            small = Site(
                LiveSource(client(kubeconfig)), SMALL, lambda: ask_exporters(exporters, "dra-driver"), settle_s=20.0
            )
            problems += _walk(browser, small)
        taken = "snapshot, file of 2026-01-02 12:00"
        problems += _walk(browser, Site(FileSource(ClusterState()), EMPTY, taken=taken))
        problems += _walk(browser, Site(None, SIGN_IN, settle_s=0.0))
        fleet = large.LargeFleet(1000)
        problems += _walk(browser, Site(fleet, LARGE, fleet.use, settle_s=30.0))
        print(f"{rss_mib(os.getpid()):.0f} MiB: this process, with the server, 2 and 1,000 nodes")
        huge = large.LargeFleet(10_000, long_names=True)
        problems += _walk(browser, Site(huge, HUGE, huge.use, settle_s=90.0), save=False)
    finally:
        browser.quit()
    print("\n".join(problems) or "every page is good")
    return 1 if problems else 0


def _serve(site: Site) -> str:
    said: SimpleQueue[str] = SimpleQueue()
    source = site.source
    if source is None:
        visits: dict[str, Any] = {"origins": {}, "port": 0, "everywhere": False, "max_sessions": 1, "say": said.put}
        threading.Thread(target=lambda: serve_visitors(_refuse, **visits), daemon=True).start()
        return said.get(timeout=30) + "sign-in"
    options: dict[str, Any] = {"about": "prod-eu-1", "port": 0, "say": said.put, "taken": site.taken}
    options |= {"read_use": site.read_use, "use_interval_s": 1.0}
    threading.Thread(target=lambda: serve(source, **options), daemon=True).start()
    return said.get(timeout=30)


def _refuse(token: str, namespaces: Sequence[str], expired: Callable[[], None]) -> PageSources:
    raise UnauthorizedError("401")


def _browser() -> Any:
    options = Options()
    options.binary_location = "/usr/bin/chromium"
    for flag in ("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    browser = webdriver.Chrome(options=options, service=Service("/usr/bin/chromedriver"))
    browser.set_script_timeout(180)
    return browser


def _walk(browser: Any, site: Site, *, save: bool = True) -> list[str]:
    browser.get(_serve(site))
    time.sleep(2)
    base = browser.current_url.rstrip("/")
    time.sleep(site.settle_s)
    problems = []
    for size, (width, height) in SIZES.items():
        shape = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": size == "narrow"}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", shape)
        for name, path in site.pages.items():
            problems += _look(browser, base + path, name, size, save=save)
    for name, drive in DRIVES.items():
        if name in site.pages:
            browser.get(base + site.pages[name])
            time.sleep(1.5)
            problems += [f"{name}: {said}" for said in _driven(browser, drive)]
    browser.get_log("browser")  # of refused requests
    return problems


def _driven(browser: Any, drive: Callable[[Any], Iterator[str]]) -> list[str]:
    for _ in range(5):
        try:
            return list(drive(browser))
        except StaleElementReferenceException:  # the page has replaced its live part
            time.sleep(0.5)
    return ["the page replaces its live part all the time"]


def _search_and_arrows(browser: Any) -> Iterator[str]:
    """``/`` focuses the search; arrow keys move between the cells of the map."""
    cells = browser.find_elements(By.CSS_SELECTOR, ".map > *")[:2]
    ActionChains(browser).send_keys("/").perform()
    if browser.switch_to.active_element.get_attribute("id") != "q":
        yield "the key / does not focus the search"
    cells[0].send_keys(Keys.ARROW_RIGHT)
    if browser.switch_to.active_element != cells[1]:
        yield "the right arrow key does not move to the next cell"


def _copy_a_command(browser: Any) -> Iterator[str]:
    permissions = {"permissions": ["clipboardReadWrite", "clipboardSanitizedWrite"]}
    browser.execute_cdp_cmd("Browser.grantPermissions", permissions)
    button = browser.find_element(By.CSS_SELECTOR, ".copy")
    wanted = button.find_element(By.XPATH, "preceding-sibling::*[1]").text
    button.click()
    time.sleep(0.5)
    found = browser.execute_async_script(
        "navigator.clipboard.readText().then(arguments[0], (e) => arguments[0](`${e}`))"
    )
    if (found, button.text) != (wanted, "Copied"):
        yield f"the copy button copied {found!r}, not {wanted!r}"


def _value_below_the_pointer(browser: Any) -> Iterator[str]:
    ActionChains(browser).move_to_element(browser.find_element(By.CSS_SELECTOR, ".lines")).perform()
    shown = browser.find_element(By.CSS_SELECTOR, ".chart .at").text
    if not re.search(r"\d.* at \d\d:\d\d", shown):
        yield f"a chart shows {shown!r} below the pointer"


def _theme_that_stays(browser: Any) -> Iterator[str]:
    theme = "return document.documentElement.dataset.theme"
    browser.find_element(By.ID, "theme").click()
    chosen = browser.execute_script(theme)
    browser.refresh()
    if chosen not in ("dark", "light") or browser.execute_script(theme) != chosen:
        yield f"the theme {chosen!r} does not stay"
    browser.find_element(By.ID, "theme").click()


def _refused_token(browser: Any) -> Iterator[str]:
    browser.find_element(By.ID, "token").send_keys("wrong", Keys.ENTER)
    time.sleep(1)
    if "does not accept this token" not in (shown := browser.find_element(By.ID, "main").text):
        yield f"a wrong token is answered with {shown!r}"


DRIVES: dict[str, Callable[[Any], Iterator[str]]] = {
    "large-fleet": _search_and_arrows,
    "large-faults": _copy_a_command,
    "gpu": _value_below_the_pointer,
    "claims": _theme_that_stays,
    "sign-in": _refused_token,
}
"""Interactions with a page, by its name."""


def _look(browser: Any, url: str, name: str, size: str, *, save: bool) -> list[str]:
    scheme = "dark" if name in DARK else "light"
    features = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", features)
    browser.get(url)
    time.sleep(1.5)
    if name == "what-if":
        browser.find_element(By.CSS_SELECTOR, "form button").send_keys(Keys.ENTER)
        time.sleep(1.5)
    problems = [f"{name} {size}: {each['message']}" for each in browser.get_log("browser")]
    picture = PICTURES / f"ui-{name}-{size}.png"
    if save and picture.name in SHOWN:
        browser.save_screenshot(str(picture))
        if picture.stat().st_size > MAX_BYTES:
            problems.append(f"{picture.name}: more than {MAX_BYTES} bytes")
    if browser.execute_script("return document.documentElement.scrollWidth") > SIZES[size][0]:
        problems.append(f"{name} {size}: wider than the window")
    if browser.execute_script(_IS_CUT):
        problems.append(f"{name} {size}: a table is cut")
    if not browser.find_elements(By.CSS_SELECTOR, "#live, #token"):
        problems.append(f"{name} {size}: not a page")
    origin = "{0.scheme}://{0.netloc}".format(urlsplit(url))
    problems += [f"{name} {size}: requested {each}" for each in browser.execute_script(_ORIGINS) if each != origin]
    if name in ("large-fleet", "huge-fleet"):
        timing = (
            "const [page] = performance.getEntriesByType('navigation'); return page.responseEnd - page.requestStart"
        )
        print(f"{name} {size}: {browser.execute_script(timing):.0f} ms from the request to the last byte")
    return problems + _axe_findings(browser, name, size)


def _axe_findings(browser: Any, name: str, size: str) -> list[str]:
    """The Content-Security-Policy of the page permits no foreign script: the browser's debugger adds axe-core."""
    if "AXE" not in os.environ:
        return [f"{name} {size}: not checked: AXE is not the path of axe.min.js"]
    browser.execute_cdp_cmd("Runtime.evaluate", {"expression": Path(os.environ["AXE"]).read_text()})
    found = json.loads(browser.execute_async_script(_AXE))
    for each in found:
        print(f"axe {name} {size}: {each}")
    return [f"{name} {size}: axe-core: {each}" for each in found if each[0] in ("serious", "critical")]


if __name__ == "__main__":
    sys.exit(main())
