"""A browser, a server with a small random model slow enough to be watched, and the page."""

import time
from dataclasses import replace

import pytest
from engines import load_engine
from fakes import FakeChatTemplate
from serving import serving

from server.engine.async_engine import AsyncEngine


@pytest.fixture(scope="module")
def driver():
    """One browser for all tests of a file."""
    browser = pytest.importorskip("browser", reason="needs selenium")
    if not (browser.BROWSER and browser.DRIVER):
        pytest.skip("needs chromium and chromedriver: apt-get install chromium chromium-driver")
    driver = browser.start_browser()
    yield driver
    driver.quit()


@pytest.fixture(scope="module")
def url(checkpoint):
    """Where a small random model is served, slow enough to be watched."""
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
def open_page(driver):
    """Opens the page of a server, with nothing kept from before."""
    from browser import Page  # noqa: PLC0415 - only where selenium is installed

    return lambda url: Page(driver, url)


@pytest.fixture
def page(open_page, url):
    """The page, connected, with greedy answers of 60 tokens; it must not complain."""
    page = open_page(url)
    page.until_live()
    page.set("temperature", 0)
    page.set("max-tokens", 60)
    yield page
    assert page.console_errors() == []
