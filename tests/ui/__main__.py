"""Open every page in Debian's Chromium, check it, and write the pictures of docs/pictures: ``make ui-shots``. Fails
when a page does not open, is wider than its window, cuts a table or menu, or writes an error to the browser's
console."""

import sys
import tempfile
import threading
import time
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from selenium import webdriver
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from dra_driver.kube.kubeconfig import Kubeconfig
from dra_driver.kubectl.commands.source import client
from dra_driver.kubectl.commands.usage_source import ask_exporters
from dra_driver.kubectl.web.reading import LiveSource
from dra_driver.kubectl.web.serve import serve
from tests.ui.scene import scene

ROOT = Path(__file__).parents[2]
PICTURES = ROOT / "docs" / "pictures"
MAX_BYTES = 150_000
SIZES = {"wide": (1280, 860), "narrow": (420, 860)}
PAGES = {
    "fleet": "/",
    "node": "/nodes/gpu-b",
    "gpu": "/nodes/gpu-b/gpu-0",
    "claims": "/claims",
    "waiting": "/pending",
    "explained": "/pending/default/no-match",
    "what-if": "/what-if",
    "capacity": "/capacity",
    "events": "/events",
}
DARK = ("gpu", "explained", "capacity")
_IS_CUT = """
const parts = [...document.querySelectorAll("nav.main, .scroll, table")];
return parts.some((each) => each.scrollWidth > each.clientWidth + 1);
"""


def main() -> int:
    with tempfile.TemporaryDirectory() as folder, scene(ROOT, Path(folder), usage=True) as cluster:
        address = _serve(str(cluster.kubeconfig))
        browser = _browser()
        try:
            problems = _walk(browser, address)
        finally:
            browser.quit()
    print("\n".join(problems) or "every page is good")
    return 1 if problems else 0


def _serve(kubeconfig: str) -> str:
    said: SimpleQueue[str] = SimpleQueue()
    source, exporters = (client(Kubeconfig(path=kubeconfig)) for _ in range(2))
    options: dict[str, Any] = {"about": "embedded cluster", "port": 0, "say": said.put}
    options |= {"read_use": lambda: ask_exporters(exporters, "dra-driver"), "use_interval_s": 1.0}
    threading.Thread(target=lambda: serve(LiveSource(source), **options), daemon=True).start()
    return said.get(timeout=30)


def _browser() -> Any:
    options = Options()
    options.binary_location = "/usr/bin/chromium"
    for flag in ("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    return webdriver.Chrome(options=options, service=Service("/usr/bin/chromedriver"))


def _walk(browser: Any, address: str) -> list[str]:
    browser.get(address)
    time.sleep(2)
    base = browser.current_url.rstrip("/")
    time.sleep(20)  # for charts
    problems = []
    for size, (width, height) in SIZES.items():
        shape = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": size == "narrow"}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", shape)
        for name, path in PAGES.items():
            problems += _look(browser, base + path, name, size, width)
    return problems


def _look(browser: Any, url: str, name: str, size: str, width: int) -> list[str]:
    scheme = "dark" if name in DARK else "light"
    features = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", features)
    browser.get(url)
    time.sleep(1.5)
    if name == "what-if":
        browser.find_element(By.CSS_SELECTOR, "form button").send_keys(Keys.ENTER)
        time.sleep(1.5)
    picture = PICTURES / f"ui-{name}-{size}.png"
    browser.save_screenshot(str(picture))
    problems = [f"{name} {size}: {each['message']}" for each in browser.get_log("browser")]
    if browser.execute_script("return document.documentElement.scrollWidth") > width:
        problems.append(f"{name} {size}: wider than the window")
    if browser.execute_script(_IS_CUT):
        problems.append(f"{name} {size}: a table or the menu is cut")
    if picture.stat().st_size > MAX_BYTES:
        problems.append(f"{picture.name}: more than {MAX_BYTES} bytes")
    if not browser.find_elements(By.ID, "live"):
        problems.append(f"{name} {size}: not a page")
    return problems


if __name__ == "__main__":
    sys.exit(main())
