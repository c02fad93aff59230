"""A headless Chromium, driven over the WebDriver protocol by its own driver."""

import base64
import json
import re
import shutil
import subprocess
import time
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import ProxyHandler, Request, build_opener

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
ARGUMENTS = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"]
PATIENCE_SECONDS = 60.0
OPENER = build_opener(ProxyHandler({}))


class Browser:
    """A session of a browser.

    Parameters
    ----------
    address : str
        Of the session.
    """

    def __init__(self, address: str) -> None:
        self._address = address

    def open(self, url: str) -> None:
        """Open a page and wait until it is there."""
        call(self._address + "/url", {"url": url})

    def run(self, script: str, *arguments: Any) -> Any:
        """Run a script, the body of a function, and return what it returns."""
        return call(self._address + "/execute/sync", {"script": script, "args": list(arguments)})

    def wait(self, script: str, *arguments: Any) -> Any:
        """Wait until a script returns something, and return it."""
        ends = time.monotonic() + PATIENCE_SECONDS
        while not (found := self.run(script, *arguments)):
            if time.monotonic() > ends:
                raise TimeoutError(script)
            time.sleep(0.05)
        return found

    def resize(self, width: int, height: int) -> None:
        """Give the page this size, like a phone's: a window can't be so narrow."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self._command("Emulation.setDeviceMetricsOverride", metrics)

    def shot(self, path: Path) -> None:
        """Write what is to be seen as a PNG file."""
        path.write_bytes(base64.b64decode(self._command("Page.captureScreenshot", {})["data"]))

    def messages(self) -> list[str]:
        """Return what the browser logged since it was asked last: errors, and what a policy has refused."""
        return [entry["message"] for entry in call(self._address + "/se/log", {"type": "browser"})]

    def _command(self, name: str, parameters: dict[str, Any]) -> Any:
        return call(self._address + "/goog/cdp/execute", {"cmd": name, "params": parameters})


@contextmanager
def browser():
    """Start a browser, and end it."""
    driver = subprocess.Popen([DRIVER, "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        found = next(filter(None, (re.search(r"successfully on port (\d+)", line) for line in driver.stdout)))
        address = f"http://127.0.0.1:{found[1]}/session"
        options = {"args": ARGUMENTS, "binary": CHROMIUM}
        asked = {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
        session = call(address, {"capabilities": {"alwaysMatch": asked}})["sessionId"]
        try:
            yield Browser(f"{address}/{session}")
        finally:
            call(f"{address}/{session}", None, "DELETE")
    finally:
        driver.terminate()
        driver.wait()
        driver.stdout.close()


def call(url: str, content: Any, method: str = "POST") -> Any:
    """Send a command and return its value."""
    data = None if content is None else json.dumps(content).encode()
    try:
        with OPENER.open(
            Request(url, data, {"Content-Type": "application/json"}, method=method), timeout=120
        ) as answer:
            return json.load(answer)["value"]
    except HTTPError as error:
        raise RuntimeError(json.load(error)["value"]["message"]) from None
    except URLError as error:
        raise RuntimeError(f"{url}: {error}") from None
