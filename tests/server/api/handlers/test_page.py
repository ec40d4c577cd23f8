"""The page: its files are served strictly, and a real browser shows what the server does."""

import re
import time
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from engines import load_engine
from fakes import FakeChatTemplate, FakeEngine
from serving import serving

from server.engine.async_engine import AsyncEngine

STATIC = Path(__file__).parents[4] / "server" / "api" / "static"
FILES = sorted(path.name for path in STATIC.iterdir())
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
BEGINNING = "Let us talk about the weather of tomorrow in some detail. "


@pytest.fixture(scope="module")
def static_client():
    """A client of a server whose engine does not matter."""
    with serving(FakeEngine()) as url, httpx.Client(base_url=url) as client:
        yield client


@pytest.mark.parametrize("name", FILES)
def test_files_have_their_types(static_client, name):
    """Each file is served as it lies there, with its type, a policy and a tag that saves a load."""
    answer = static_client.get(f"/static/{name}")
    assert answer.content == (STATIC / name).read_bytes()
    assert answer.headers["content-type"] == TYPES[Path(name).suffix]
    assert "script-src 'self'" in answer.headers["content-security-policy"]
    assert answer.headers["x-content-type-options"] == "nosniff"
    again = static_client.get(f"/static/{name}", headers={"If-None-Match": answer.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")


def test_page_is_at_the_root(static_client):
    """The page is what a browser finds at /, and it allows nothing that is not its own."""
    answer = static_client.get("/")
    assert answer.text == (STATIC / "index.html").read_text(encoding="utf-8")
    policy = answer.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'")
    assert "unsafe" not in policy
    assert "http" not in policy


@pytest.mark.parametrize("name", ["nothing.js", "..%2Fapp.py", "%2Fetc%2Fpasswd", ""])
def test_nothing_else_is_served(static_client, name):
    """Only the page's own files can be had."""
    answer = static_client.get(f"/static/{name}")
    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "not_found"


@pytest.mark.parametrize("name", FILES)
def test_files_stand_alone(name):
    """No file loads anything from elsewhere, and every file that one names is there."""
    text = (STATIC / name).read_text(encoding="utf-8")
    assert not re.search(r"""["'(]\s*(https?:)?//(?!www\.w3\.org/2000/svg)""", text)
    named = re.findall(r"""(?:/static/|from "\./)([\w.-]+)""", text)
    assert set(named) <= set(FILES)


@pytest.mark.parametrize("name", [name for name in FILES if name.endswith((".js", ".html"))])
def test_text_is_never_markup(name):
    """Nothing that came from a model or a user can become HTML or code."""
    text = (STATIC / name).read_text(encoding="utf-8")
    ways = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function"
    assert not re.search(ways + r"|\son\w+=\"|\sstyle=\"", text)


# What follows needs a browser.


@pytest.fixture(scope="module")
def driver():
    """One browser for all tests of this file."""
    browser = pytest.importorskip("browser", reason="needs selenium")
    if not (browser.BROWSER and browser.DRIVER):
        pytest.skip("needs chromium and chromedriver: apt-get install chromium chromium-driver")
    driver = browser.start_browser()
    yield driver
    driver.quit()


@pytest.fixture(scope="module")
def url(checkpoint):
    """A server with a small random model, slow enough to be watched."""
    loaded = load_engine(checkpoint("rand-llama-tied"))
    step = loaded.engine.step

    def slow_step():
        time.sleep(0.02)
        return step()

    loaded.engine.step = slow_step
    loaded = replace(loaded, chat_template=FakeChatTemplate())
    with serving(AsyncEngine(lambda: loaded)) as url:
        yield url


@pytest.fixture
def page(driver, url):
    """The page, connected, with greedy answers of 60 tokens; it must not complain."""
    from browser import Page  # noqa: PLC0415 - only where selenium is installed

    page = Page(driver, url)
    page.until_live()
    page.set("temperature", 0)
    page.set("max-tokens", 60)
    yield page
    assert page.console_errors() == []


@pytest.mark.slow
def test_chat_streams(page, url):
    """An answer grows while it is written, and is in the end what the API answers."""
    page.ask("Hello there")
    seen = set()
    page.until(page.is_streaming, "the answer begins")
    while page.is_streaming():
        seen.add(page.said()[-1])
    question, answer = page.said()
    assert question == "Hello there"
    assert len(seen) > 3
    assert all(answer.startswith(part) for part in seen if part != question)
    body = {
        "messages": [{"role": "user", "content": "Hello there"}],
        "temperature": 0,
        "max_tokens": 60,
    }
    expected = httpx.post(f"{url}/v1/chat/completions", json=body).json()
    assert answer == expected["choices"][0]["message"]["content"]


@pytest.mark.slow
def test_blocks_come_and_go(page):
    """While an answer is written its blocks are on the map and its request in the list."""
    page.until(lambda: page.num_held() == 0, "nobody else is there")
    page.ask("Hello there, who are you?")
    page.until(lambda: page.num_held() > 0, "blocks are held")
    assert "of" in page.text("batch")
    page.until(lambda: page.num_held() == 0, "the blocks are given back")
    assert "Nobody is running" in page.text("batch")
    assert page.colours("map") > 1


@pytest.mark.slow
def test_branches_share_blocks(page):
    """Two chats that share their beginning share its blocks, on the map and in words."""
    page.set("max-tokens", 8)
    page.ask(BEGINNING * 2)
    page.until(lambda: len(page.said()) == 2 and not page.is_streaming(), "an answer")
    page.set("max-tokens", 250)
    page.find("branch").click()
    page.ask("Tell me more")
    page.until(page.is_streaming, "the first branch is written")
    page.driver.find_element("id", "chat-1").click()
    page.find("branch").click()
    page.ask("Tell me less")
    page.until(lambda: page.num_shared() >= len(BEGINNING) * 2 // 16, "shared blocks")
    assert "shared with" in page.text("batch")
    for chat in ("chat-2", "chat-3"):
        page.driver.find_element("id", chat).click()
        page.find("question").send_keys("\ue00c")
    page.until(lambda: page.num_held() == 0, "both have gone")


@pytest.mark.slow
def test_escape_stops_an_answer(page):
    """Escape ends an answer; what was written stays, and its speed is told."""
    page.set("max-tokens", 300)
    page.ask("Tell me everything")
    page.until(lambda: len(page.said()) == 2 and len(page.said()[1]) > 4, "something is written")
    page.find("question").send_keys("\ue00c")
    page.until(lambda: not page.is_streaming(), "the answer ends")
    assert page.said()[1]
    assert page.text("meter-between").endswith("s")
    page.until(lambda: page.num_held() == 0, "the request is gone")


@pytest.mark.slow
def test_timeline_is_drawn(page):
    """After an answer its timeline is drawn and summed up, and it is in the list of requests."""
    page.ask("Hello")
    page.until(lambda: "then 59 steps" in page.text("timeline-summary"), "the timeline")
    assert page.colours("timeline-canvas") > 3
    chosen = "#requests tr.chosen"
    page.until(lambda: page.driver.find_elements("css selector", chosen), "it is in the list")
    assert page.text("meter-first").endswith("s")


@pytest.mark.slow
def test_comparison_finishes(page):
    """The comparison is drawn while it runs and ends with how much faster, and the same tokens."""
    page.set("compare-tokens", 24)
    page.find("compare-prompt").send_keys("\n")
    page.until(lambda: page.find("compare-canvas").is_displayed(), "it is drawn")
    page.until(lambda: "times faster" in page.text("compare-status"), "it ends")
    assert "The tokens are the same." in page.text("compare-status")
    assert page.colours("compare-canvas") > 3


@pytest.mark.slow
def test_attention_is_drawn(page):
    """The attention of a short text is drawn, and arrow keys tell the weights of its cells."""
    page.set("attention-text", "abc")
    page.set("attention-layer", 1)
    page.find("attention-text").send_keys("\n")
    page.until(lambda: "layer 1, the mean of all heads" in page.text("attention-status"), "a map")
    assert page.colours("attention-canvas") > 3
    page.find("attention-canvas").send_keys("\ue015")
    page.until(lambda: "with 100.0 %" in page.text("attention-status"), "the first weight")
    page.find("attention-canvas").send_keys("\ue014")
    page.until(lambda: "cannot look ahead" in page.text("attention-status"), "the causal triangle")


@pytest.mark.slow
def test_refusal_is_shown_in_the_servers_words(page):
    """What the server refuses is shown as it was said, and as text."""
    page.set("max-tokens", 100_000)
    page.ask("<img src=x onerror=alert(1)>")
    page.until(lambda: "maximum context length" in page.said()[-1], "the refusal")
    assert page.said()[0] == "<img src=x onerror=alert(1)>"
    # The browser itself reports that a call was refused.
    assert all("400" in entry for entry in page.console_errors())


@pytest.mark.slow
def test_keyboard_reaches_everything(page):
    """Tab goes from the skip link through the chat to the map, whose blocks arrows inspect."""
    page.driver.execute_script("document.activeElement.blur()")
    reached: list[str | None] = []
    while "map" not in reached and len(reached) < 14:
        page.driver.switch_to.active_element.send_keys("\ue004")
        reached.append(page.driver.switch_to.active_element.get_attribute("id"))
    wanted = ["new-chat", "messages", "question", "temperature", "max-tokens", "send", "map"]
    assert [id_ for id_ in reached if id_ in wanted] == wanted
    page.find("map").send_keys("\ue014")
    page.until(lambda: page.text("map-inspected").startswith("Block 1: "), "block 1")
    page.find("map").send_keys("\ue014")
    page.until(lambda: page.text("map-inspected").startswith("Block 2: "), "block 2")


@pytest.mark.slow
@pytest.mark.parametrize("width", [320, 390, 768, 1280])
def test_fits_every_width(page, width):
    """At no width does the page scroll sideways."""
    page.driver.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 700},
    )
    try:
        page.ask("unbreakable" * 20)
        page.until(lambda: page.said() and not page.is_streaming(), "it is answered")
        root = "document.documentElement"
        script = f"return [{root}.scrollWidth, {root}.clientWidth]"
        scroll, client = page.driver.execute_script(script)
        assert scroll <= client == width
    finally:
        page.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


@pytest.mark.slow
def test_says_when_the_server_is_gone_and_comes_back(driver, checkpoint):
    """When the server ends the page says so, and it goes on by itself when the server is back."""
    from browser import Page  # noqa: PLC0415 - only where selenium is installed

    loaded = load_engine(checkpoint("rand-llama-tied"))
    with serving(AsyncEngine(lambda: loaded)) as url:
        port = int(url.rpartition(":")[2])
        page = Page(driver, url)
        page.until_live()
        assert not page.find("gone").is_displayed()
    page.until(page.find("gone").is_displayed, "the page says that the server is gone")
    with serving(AsyncEngine(lambda: loaded), port=port):
        page.find("retry").click()
        page.until_live()
        assert not page.find("gone").is_displayed()


@pytest.mark.slow
def test_asks_for_the_key(driver):
    """A server with a key is asked again with the key that the user gives."""
    from browser import Page  # noqa: PLC0415 - only where selenium is installed

    with serving(FakeEngine("Hello, you"), api_key="sesame") as url:
        page = Page(driver, url)
        page.until(page.find("key").is_displayed, "the question for the key")
        page.find("key").send_keys("wrong\n")
        page.until(lambda: "did not accept" in page.text("key-reason"), "the key is refused")
        page.find("key").send_keys("sesame\n")
        page.until(lambda: "fake" in page.text("model"), "the model is named")
        assert driver.execute_script("return sessionStorage.getItem('kvserve-key')") == "sesame"
        page.ask("Hello")
        page.until(lambda: page.said() == ["Hello", "Hello, you"], "the answer")
