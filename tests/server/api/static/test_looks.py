"""How the page looks: on a laptop, a phone and a projector, by keyboard, and to axe."""

from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
TAB, DOWN = "\ue004", "\ue014"


def boxes(page, *ids: str) -> list[dict[str, float]]:
    script = "return document.getElementById(arguments[0]).getBoundingClientRect().toJSON()"
    return [page.driver.execute_script(script, id_) for id_ in ids]


def test_composer_answer_and_map_are_seen_together(page):
    """On a laptop's 1366 x 650 all three are on the screen at once, without scrolling."""
    with page.screen(1366, 650):
        page.ask("Hello there")
        page.until(lambda: len(page.said()) == 2 and not page.is_streaming(), "it is answered")
        for box in boxes(page, "question", "send", "messages", "map", "batch", "spark"):
            assert box["height"] > 20
            assert box["top"] >= 0
            assert box["bottom"] <= 650
        assert boxes(page, "messages")[0]["height"] > 200


@pytest.mark.parametrize("width", [320, 390, 768, 1280])
def test_no_width_scrolls_sideways(page, width):
    """Whatever is said, the page is as wide as its window."""
    with page.screen(width, 800, mobile=width < 700):
        page.ask("unbreakable" * 12)
        page.until(lambda: len(page.said()) == 2 and not page.is_streaming(), "it is answered")
        root = "document.documentElement"
        script = f"return [{root}.scrollWidth, {root}.clientWidth]"
        scroll, client = page.driver.execute_script(script)
        assert scroll <= client == width


def test_fingers_find_what_they_touch(page):
    """On a phone everything that can be touched is 44 pixels high, and requests are readable."""
    with page.screen(390, 844, mobile=True):
        page.ask("Hello")
        page.until(lambda: page.driver.find_elements("css selector", "#requests td"), "a request")
        script = """
          return [...document.querySelectorAll("button, input, select, summary, textarea")]
            .filter((each) => each.checkVisibility())
            .filter((each) => each.getBoundingClientRect().height < 44)
            .map((each) => each.outerHTML);
        """
        assert page.driver.execute_script(script) == []
        cell = page.driver.find_element("css selector", "#requests td")
        name = "return getComputedStyle(arguments[0], '::before').content"
        assert "prompt" in page.driver.execute_script(name, cell)
        page.idle()


def test_a_projector_gets_the_whole_screen(page):
    """Full screen enlarges text and canvases together, and leaving it shrinks them again."""
    with page.screen(1366, 768):
        before = boxes(page, "question", "spark")
        page.find("projector").click()
        page.until(lambda: page.text("projector") == "Leave full screen", "it is full")
        size = "return parseFloat(getComputedStyle(document.documentElement).fontSize)"
        assert page.driver.execute_script(size) == 22
        page.until(lambda: boxes(page, "spark")[0]["height"] > before[1]["height"], "canvases grow")
        page.find("projector").click()
        page.until(lambda: page.text("projector") == "Full screen", "it is left")
        assert page.driver.execute_script(size) == 16


def test_the_keyboard_reaches_everything(page):
    """Tab goes from the skip link through the chat to the map, whose blocks arrows inspect."""
    page.driver.execute_script("document.activeElement.blur()")
    reached: list[str | None] = []
    while "map" not in reached and len(reached) < 25:
        page.driver.switch_to.active_element.send_keys(TAB)
        reached.append(page.driver.switch_to.active_element.get_attribute("id"))
    wanted = ["new-chat", "messages", "question", "temperature", "max-tokens", "send", "map"]
    assert [id_ for id_ in reached if id_ in wanted] == wanted
    page.find("map").send_keys(DOWN)
    page.until(lambda: page.text("map-inspected").startswith("Block 1: "), "block 1")
    page.find("map").send_keys(DOWN)
    page.until(lambda: page.text("map-inspected").startswith("Block 2: "), "block 2")


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [1366, 390])
def test_axe_finds_nothing(page, dark, width):
    """With a conversation, a timeline, a map of attention and a notice shown, in both themes."""
    axe = Path(pytest.importorskip("axe_core_python").__file__).with_name("axe.min.js").read_text()
    with page.screen(width, 800, mobile=width < 700, dark=dark):
        page.set("max-tokens", 8)
        page.driver.execute_script("document.querySelector('details').open = true")
        page.ask("Hello")
        page.until(lambda: "then 7 steps" in page.text("timeline-summary"), "the timeline")
        page.press("attention-go")
        page.until(lambda: "Shown: layer" in page.text("attention-status"), "the map")
        page.press("new-chat")
        page.ask("Goodbye")
        page.until(lambda: len(page.said()) == 2 and not page.is_streaming(), "an answer")
        page.press("delete-chat")
        page.driver.execute_script(axe)
        run = "axe.run().then((found) => arguments[0](found.violations))"
        found = page.driver.execute_async_script(run)
        assert [(each["id"], [node["target"] for node in each["nodes"]]) for each in found] == []
