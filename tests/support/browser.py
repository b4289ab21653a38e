"""A headless Chromium that is told what to do by chromedriver, over plain HTTP (W3C WebDriver)."""

from __future__ import annotations

import json
import shutil
import subprocess
import urllib.request
from base64 import b64decode
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import pytest

FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--disable-dev-shm-usage",
)  # fmt: skip
MISSING = "needs Debian's chromium and chromium-driver"


def installed() -> bool:
    return bool(shutil.which("chromium") and shutil.which("chromedriver"))


class Browser:
    """One window.

    Args:
        url: of the driver's session.
    """

    def __init__(self, url: str) -> None:
        self._url = url

    def open(self, page: Path) -> None:
        self.visit(page.absolute().as_uri())

    def visit(self, address: str) -> None:
        self._post("url", {"url": address})

    def run(self, script: str) -> Any:
        """What a function's body returns in the page; a promise is waited for."""
        return self._post("execute/sync", {"script": script, "args": []})

    def width(self, pixels: int) -> None:
        """The width that the page has, whatever the least of a window is."""
        metrics = {"width": pixels, "height": 800, "deviceScaleFactor": 1, "mobile": True}
        command = {"cmd": "Emulation.setDeviceMetricsOverride", "params": metrics}
        self._post("goog/cdp/execute", command)

    def scheme(self, name: str) -> None:
        """The colour scheme that is preferred: ``light`` or ``dark``."""
        preferred = {"name": "prefers-color-scheme", "value": name}
        command = {"cmd": "Emulation.setEmulatedMedia", "params": {"features": [preferred]}}
        self._post("goog/cdp/execute", command)

    def media(self, name: str) -> None:
        """What the page is shown on: ``print``, or as it is."""
        command = {"cmd": "Emulation.setEmulatedMedia", "params": {"media": name}}
        self._post("goog/cdp/execute", command)

    def picture(self) -> bytes:
        """The whole page, as a PNG file."""
        params = {"captureBeyondViewport": True}
        size = self._post("goog/cdp/execute", {"cmd": "Page.getLayoutMetrics", "params": {}})
        clip = {**size["cssContentSize"], "scale": 1}
        command = {"cmd": "Page.captureScreenshot", "params": params | {"clip": clip}}
        return b64decode(self._post("goog/cdp/execute", command)["data"])

    def drag(self, left: float, top: float, right: float, bottom: float) -> None:
        """The mouse's button held from one point of the window to another."""
        for kind, x, y in (
            ("mousePressed", left, top),
            ("mouseMoved", (left + right) / 2, (top + bottom) / 2),
            ("mouseMoved", right, bottom),
            ("mouseReleased", right, bottom),
        ):
            pressed = {"button": "left", "buttons": 1, "clickCount": 1}
            params = {"type": kind, "x": x, "y": y, **pressed}
            self._post("goog/cdp/execute", {"cmd": "Input.dispatchMouseEvent", "params": params})

    def pdf(self) -> bytes:
        """The page as it is printed."""
        command = {"cmd": "Page.printToPDF", "params": {"preferCSSPageSize": True}}
        return b64decode(self._post("goog/cdp/execute", command)["data"])

    def complaints(self) -> list[str]:
        """Errors and warnings on the console since the last call."""
        return [entry["message"] for entry in self._post("se/log", {"type": "browser"})]

    def _post(self, path: str, body: dict[str, Any]) -> Any:
        return request(f"{self._url}/{path}", body)


def request(url: str, body: dict[str, Any] | None, method: str = "POST") -> Any:
    data = None if body is None else json.dumps(body).encode()
    asked = urllib.request.Request(url, data, {"Content-Type": "application/json"}, method=method)
    with urllib.request.urlopen(asked, timeout=600) as answer:
        return json.load(answer)["value"]


@contextmanager
def browser(folder: Path) -> Iterator[Browser]:
    """A browser that keeps its files in an empty folder, and ends with the block."""
    command = ["chromedriver", "--port=0", f"--log-path={folder / 'driver.log'}"]
    driver = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert driver.stdout is not None
        line = next(line for line in driver.stdout if "successfully on port" in line)
        port = line.rstrip(".\n").split()[-1]
        url = f"http://127.0.0.1:{port}/session"
        options = {"args": [*FLAGS, f"--user-data-dir={folder / 'profile'}"]}
        wanted = {
            "timeouts": {"script": 600_000},
            "goog:chromeOptions": options,
            "goog:loggingPrefs": {"browser": "ALL"},
        }
        try:
            session = request(url, {"capabilities": {"alwaysMatch": wanted}})["sessionId"]
        except HTTPError as refusal:
            pytest.skip(f"no browser starts here: {refusal.read()[:300]!r}")
        try:
            yield Browser(f"{url}/{session}")
        finally:
            request(f"{url}/{session}", None, "DELETE")
    finally:
        driver.terminate()
        driver.wait()
