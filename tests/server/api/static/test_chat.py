"""Chats in a real browser: streamed, stopped, continued, edited, kept, refused."""

import httpx
import pytest
from engines import load_engine
from fakes import FakeEngine
from serving import serving

from server.engine.async_engine import AsyncEngine

pytestmark = pytest.mark.slow
ESCAPE, CONTROL, DELETE = "\ue00c", "\ue009", "\ue017"


def answered(page, question: str, tokens: int = 8) -> str:
    """Ask, wait for the end, and give the answer as the browser keeps it."""
    page.set("max-tokens", tokens)
    page.ask(question)
    page.until(lambda: page.is_streaming() or len(page.said()) > 1, "the answer begins")
    page.idle()
    return page.stored()[-1]["messages"][-1]["content"]


def test_an_answer_streams(page, url):
    """It grows while it is written, is in the end what the API answers, and tells its speed."""
    page.ask("Hello there")
    seen = set()
    page.until(page.is_streaming, "the answer begins")
    while page.is_streaming():
        seen.add(page.said()[-1])
    assert page.said()[0] == "Hello there"
    assert len(seen) > 3
    body = {
        "messages": [{"role": "user", "content": "Hello there"}],
        "temperature": 0,
        "max_tokens": 60,
    }
    expected = httpx.post(f"{url}/v1/chat/completions", json=body).json()
    (kept,) = page.stored()
    assert kept["messages"][-1]["content"] == expected["choices"][0]["message"]["content"]
    assert "tokens/s" in page.text("messages")


def test_a_cut_answer_is_shown_and_goes_on(page, url):
    """What the limit cut off says so, and continuing adds what a longer answer would have had."""
    first = answered(page, "Hello there", tokens=12)
    assert "Cut off at the limit of 12 tokens." in page.text("messages")
    page.driver.find_element("css selector", ".ending button").click()
    page.until(lambda: page.stored()[-1]["messages"][-1]["content"] != first, "it goes on")
    page.idle()
    whole = page.stored()[-1]["messages"][-1]["content"]
    assert whole.startswith(first)
    assert len(page.said()) == 2


def test_escape_stops_an_answer(page):
    """What was written stays and says that it was stopped; its request is gone."""
    page.set("max-tokens", 300)
    page.ask("Tell me everything")
    page.until(lambda: len(page.said()) == 2 and len(page.said()[1]) > 4, "something is written")
    page.find("question").send_keys(ESCAPE)
    page.idle()
    assert "You stopped it here." in page.text("messages")
    assert page.text("meter-between").endswith("s")
    page.until(lambda: page.num_held() == 0, "the request is gone")


def test_questions_are_edited_and_answers_written_anew(page):
    """An edited question replaces what followed; cancelling keeps it; regenerating asks again."""
    first = answered(page, "Hello there")
    answered(page, "And then?")
    edit = "#messages article:first-child .message-tools button"
    page.driver.find_element("css selector", edit).click()
    assert page.find("question").get_property("value") == "Hello there"
    page.find("question").send_keys(ESCAPE)
    assert len(page.said()) == 4
    page.driver.find_element("css selector", edit).click()
    page.find("question").clear()
    answered(page, "Good morning")
    assert page.said()[0] == "Good morning"
    assert len(page.said()) == 2
    other = page.stored()[-1]["messages"][-1]["content"]
    assert other != first
    buttons = page.driver.find_elements("css selector", ".message.assistant .message-tools button")
    buttons[1].click()
    page.until(page.is_streaming, "it is written anew")
    page.idle()
    assert page.stored()[-1]["messages"][-1]["content"] == other  # as it is greedy
    assert len(page.said()) == 2


def test_chats_are_kept_renamed_and_deleted(page):
    """After a reload they are there, in their colours; what is deleted can come back."""
    answer = answered(page, "Hello there")
    page.press("new-chat")
    answered(page, "Another matter")
    page.press("rename-chat")
    page.driver.find_element("css selector", "input.tab-name").send_keys("Matters\n")
    assert page.tabs() == ["Hello there", "Matters"]
    swatch = "return [...document.querySelectorAll('.tabs .swatch')].map((s) => s.style.background)"
    colours = page.driver.execute_script(swatch)
    page.driver.refresh()
    page.until(lambda: page.tabs() == ["Hello there", "Matters"], "the chats are back")
    assert page.driver.execute_script(swatch) == colours
    assert len(set(colours)) == 2
    page.show(0)
    assert page.stored()[0]["messages"][-1]["content"] == answer
    page.press("delete-chat")
    assert page.tabs() == ["Matters"]
    assert len(page.stored()) == 1
    page.press("undo")
    assert sorted(page.tabs()) == ["Hello there", "Matters"]
    assert len(page.stored()) == 2


def test_a_chat_is_exported_as_the_messages_of_a_request(page):
    """The file holds the system prompt and all that was said, as the API takes it."""
    page.driver.execute_script(
        "window.saved = [];URL.createObjectURL = (blob) => { window.saved.push(blob); return '#'; }"
    )
    page.driver.execute_script("document.querySelector('details').open = true")
    page.find("system").send_keys("Be brief")
    answer = answered(page, "Hello there")
    page.press("export-chat")
    read = "window.saved[0].text().then((text) => arguments[0](JSON.parse(text)))"
    assert page.driver.execute_async_script(read)["messages"] == [
        {"role": "system", "content": "Be brief"},
        {"role": "user", "content": "Hello there"},
        {"role": "assistant", "content": answer},
    ]


def test_a_refused_question_returns_to_the_box(page):
    """In the server's words, as text; the conversation is as it was, and it can be tried again."""
    answered(page, "Hello there")
    page.driver.execute_script("document.querySelector('details').open = true")
    page.find("system").send_keys("refuse")
    page.ask("<img src=x onerror=alert(1)>")
    page.until(lambda: "chat template refuses" in page.notice(), "the refusal")
    assert page.find("question").get_property("value") == "<img src=x onerror=alert(1)>"
    assert len(page.said()) == len(page.stored()[0]["messages"]) == 2
    assert all("400" in entry for entry in page.console_errors())  # the browser says so itself
    page.find("system").send_keys(CONTROL + "a", DELETE)
    page.press("try-again")
    page.until(lambda: len(page.said()) == 4 and not page.is_streaming(), "it is answered")
    assert page.notice() == ""
    assert page.said()[2] == "<img src=x onerror=alert(1)>"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", "3"),
        ("max-tokens", ""),
        ("max-tokens", "0"),
        ("top-p", "-1"),
        ("seed", "1.5"),
    ],
)
def test_fields_out_of_bounds_are_refused(page, field, value):
    """Nothing is asked, the field is marked, and an empty limit is no 0."""
    page.set(field, value)
    page.ask("Hello there")
    assert page.find(field).get_attribute("aria-invalid") == "true"
    assert page.find("question").get_property("value") == "Hello there"
    assert page.said() == []
    page.driver.execute_script("localStorage.removeItem('kvserve-sampling')")


def test_empty_fields_and_settings_reach_the_server(driver, open_page):
    """What is empty takes the stated defaults, what is entered is sent as the number it is."""
    with serving(engine := FakeEngine("Hello")) as url:
        page = open_page(url)
        page.until_live()
        answered(page, "one")
        page.driver.execute_script("document.querySelector('details').open = true")
        for field, value in (("temperature", 0), ("top-k", 7), ("min-p", 0.25), ("seed", -3)):
            page.set(field, value)
        answered(page, "two")
    first, second = (request.params for request in engine.requests)
    assert (round(first.temperature, 3), first.top_p, first.min_p) == (0.7, 0.95, 0.05)
    assert (second.temperature, second.top_k, second.min_p) == (0, 7, 0.25)
    assert second.top_p == 0.95


def test_the_key_is_asked_for_and_can_be_declined(driver, open_page):
    """Cancelling leaves the user alone until something is asked for; then a right key opens all."""
    with serving(FakeEngine("Hello, you"), api_key="sesame") as url:
        page = open_page(url)
        page.until(page.find("key").is_displayed, "the question for the key")
        page.find("key-cancel").click()
        page.until(lambda: "API key" in page.text("gone-text"), "the page says what is missing")
        page.find("retry").click()
        page.until(page.find("key").is_displayed, "the question for the key")
        page.find("key").send_keys("wrong\n")
        page.until(lambda: "did not accept" in page.text("key-reason"), "the key is refused")
        page.find("key").send_keys("sesame\n")
        page.until(lambda: "fake" in page.text("model"), "the model is named")
        assert driver.execute_script("return sessionStorage.getItem('kvserve-key')") == "sesame"
        page.ask("Hello")
        page.until(lambda: page.said() == ["Hello", "Hello, you"], "the answer")


def test_a_server_that_is_gone_is_drawn_as_gone(open_page, checkpoint):
    """The page says so, shows no old state as if it were true, and goes on when it is back."""
    loaded = load_engine(checkpoint("rand-llama-tied"))
    with serving(AsyncEngine(lambda: loaded)) as url:
        port = int(url.rpartition(":")[2])
        page = open_page(url)
        page.until_live()
        assert not page.find("gone").is_displayed()
        alive = page.pixel("map", 4, 4)
    page.until(page.find("gone").is_displayed, "the page says that the server is gone")
    assert "Not known" in page.text("batch")
    assert page.text("map-counts") == "as it was last seen"
    page.until(lambda: page.text("meter-rate") == "\N{EN DASH}", "no rate is claimed")
    assert page.pixel("map", 4, 4) != alive
    with serving(AsyncEngine(lambda: loaded), port=port):
        page.find("retry").click()
        page.until_live()
        assert not page.find("gone").is_displayed()
        page.until(lambda: page.pixel("map", 4, 4) == alive, "it is drawn as alive again")
