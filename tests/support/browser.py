"""A real browser without a window, and the page in it as its user sees it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from serving import wait_until

BROWSER, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
_ARGUMENTS = (
    "--headless=new",
    "--no-sandbox",  # containers run the tests as root
    "--disable-dev-shm-usage",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-default-apps",
    "--no-first-run",
    "--hide-scrollbars",
    "--window-size=1280,1100",
)

_OF_THE_TESTS = ("willReadFrequently", "favicon.ico")
"""Complaints that come of reading pixels, and of opening a file instead of the page."""


def start_browser() -> webdriver.Chrome:
    """Chromium with its console recorded."""
    options = webdriver.ChromeOptions()
    options.binary_location = BROWSER
    for argument in _ARGUMENTS:
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    return webdriver.Chrome(options=options, service=Service(DRIVER))


class Page:
    """The page at `url` in a tab of the browser."""

    def __init__(self, driver: webdriver.Chrome, url: str) -> None:
        self.driver = driver
        driver.get(f"{url}/static/dom.js")  # a page that is left keeps its chats once more
        driver.execute_script("localStorage.clear()")
        driver.get_log("browser")  # what an earlier page said is not ours
        driver.get(url)

    def find(self, id_: str) -> WebElement:
        return self.driver.find_element(By.ID, id_)

    def text(self, id_: str) -> str:
        return str(self.find(id_).get_property("textContent"))

    def until(self, condition: Callable[[], object], what: str) -> None:
        assert wait_until(lambda: bool(condition()), 30), f"never happened: {what}"

    def until_live(self) -> None:
        self.until(lambda: self.text("connection") == "live", "the page is connected")
        self.until(lambda: self.text("model"), "the page knows the server")

    def set(self, id_: str, value: object) -> None:
        script = "document.getElementById(arguments[0]).value = arguments[1]"
        self.driver.execute_script(script, id_, str(value))

    def ask(self, question: str) -> None:
        """Type a question and press Enter."""
        self.find("question").send_keys(question + "\n")

    def idle(self) -> None:
        """Wait until no answer is being written."""
        self.until(lambda: not self.is_streaming(), "the answer ends")

    def press(self, id_: str) -> None:
        self.driver.execute_script("document.getElementById(arguments[0]).click()", id_)

    def tabs(self) -> list[str]:
        """The names of the chats."""
        script = "return [...document.querySelectorAll('[role=tab]')].map((tab) => tab.textContent)"
        return list(self.driver.execute_script(script))

    def show(self, number: int) -> None:
        """Show a chat by its place among the tabs."""
        self.driver.execute_script(
            "document.querySelectorAll('[role=tab]')[arguments[0]].click()", number
        )

    def stored(self) -> list[dict[str, Any]]:
        """The conversations that the browser keeps, the oldest first."""
        script = """
          return Object.keys(localStorage).filter((key) => key.startsWith("kvserve-chat-"))
            .map((key) => localStorage.getItem(key));
        """
        kept = [json.loads(text) for text in self.driver.execute_script(script)]
        return sorted(kept, key=lambda chat: int(chat["created"]))

    def markdown(self, text: str) -> str:
        """The HTML of what the page makes of some Markdown, whole or letter by letter."""
        script = """
          const [text, done] = arguments;
          import(new URL("static/markdown.js", document.baseURI)).then(({ MarkdownView }) => {
            const box = document.createElement("div");
            const view = new MarkdownView(box);
            for (let end = 1; end <= text.length; end += 1) view.show(text.slice(0, end));
            const grown = box.innerHTML;
            const whole = document.createElement("div");
            new MarkdownView(whole).show(text);
            done([grown, whole.innerHTML]);
          });
        """
        grown, whole = self.driver.execute_async_script(script, text)
        assert grown == whole, "how it came changes nothing"
        return str(whole)

    @contextmanager
    def screen(
        self, width: int, height: int, *, mobile: bool = False, dark: bool = False
    ) -> Iterator[None]:
        """Another size and another colour scheme for a while."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": mobile}
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        command = self.driver.execute_cdp_cmd
        try:
            command("Emulation.setDeviceMetricsOverride", size)
            command("Emulation.setEmulatedMedia", {"features": [scheme]})
            yield
        finally:
            command("Emulation.clearDeviceMetricsOverride", {})
            command("Emulation.setEmulatedMedia", {"features": []})

    def pixel(self, canvas: str, x: float, y: float) -> tuple[int, ...]:
        """The colour of a canvas at a place in CSS pixels."""
        script = """
          const [id, x, y] = arguments;
          const canvas = document.getElementById(id);
          const ratio = canvas.width / canvas.clientWidth;
          return [...canvas.getContext("2d").getImageData(x * ratio, y * ratio, 1, 1).data];
        """
        return tuple(self.driver.execute_script(script, canvas, x, y))

    def said(self) -> list[str]:
        """All that was said in the chat that is shown."""
        script = "return [...document.querySelectorAll('.said')].map((row) => row.textContent)"
        return list(self.driver.execute_script(script))

    def is_streaming(self) -> bool:
        return bool(self.driver.find_elements(By.CSS_SELECTOR, ".message.streaming"))

    def notice(self) -> str:
        """What the page says above the box."""
        return self.text("notices")

    def num_shared(self) -> int:
        """Shared blocks, as the map is described to who cannot see it."""
        label = self.find("map").get_attribute("aria-label") or ""
        return int(label.partition(" held, ")[2].partition(" of them")[0] or 0)

    def num_held(self) -> int:
        return int(self.text("map-counts").partition(" held")[0] or 0)

    def colours(self, canvas: str) -> int:
        """How many different colours a canvas shows."""
        script = """
          const canvas = document.getElementById(arguments[0]);
          const {data} = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
          return new Set(new Uint32Array(data.buffer)).size;
        """
        return int(self.driver.execute_script(script, canvas))

    def console_errors(self) -> list[str]:
        return [
            entry["message"]
            for entry in self.driver.get_log("browser")
            if entry["level"] in {"SEVERE", "WARNING"}
            and not any(cause in entry["message"] for cause in _OF_THE_TESTS)
        ]
