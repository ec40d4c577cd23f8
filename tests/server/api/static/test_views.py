"""What the page shows of the server in a real browser: map, batch, timelines, panels."""

import pytest
from selenium.webdriver.common.action_chains import ActionChains

pytestmark = pytest.mark.slow
BEGINNING = "Let us talk about the weather of tomorrow in some detail. "
CELL = 18


def test_blocks_come_and_go(page):
    """While an answer is written its blocks are on the map and its chat in the list."""
    page.until(lambda: page.num_held() == 0, "nobody else is there")
    page.ask("Hello there, who are you?")
    page.until(lambda: page.num_held() > 0, "blocks are held")
    assert "Hello there, who are you?" in page.text("batch")
    page.until(lambda: page.num_held() == 0, "the blocks are given back")
    assert "Nobody is running" in page.text("batch")
    assert page.colours("map") > 1


def test_branches_share_blocks(page):
    """Two chats that share their beginning share its blocks, on the map and in words."""
    page.set("max-tokens", 8)
    page.ask(BEGINNING * 2)
    page.until(lambda: len(page.said()) == 2 and not page.is_streaming(), "an answer")
    page.set("max-tokens", 250)
    page.press("branch")
    page.ask("Tell me more")
    page.until(page.is_streaming, "the first branch is written")
    page.show(0)
    page.press("branch")
    page.ask("Tell me less")
    page.until(lambda: page.num_shared() >= len(BEGINNING) * 2 // 16, "shared blocks")
    assert "shared with" in page.text("batch")
    for chat in (1, 2):
        page.show(chat)
        page.press("stop")
    page.until(lambda: page.num_held() == 0, "both have gone")


def test_a_chat_has_one_colour_and_its_blocks_are_pointed_out(page):
    """Tab, batch and map show the same colour, and hovering the tab rings the chat's blocks."""
    page.set("max-tokens", 250)
    page.ask("Hello there, who are you today, and what will you do tomorrow?")
    page.until(page.is_streaming, "it is written")
    script = "return getComputedStyle(document.querySelector(arguments[0])).backgroundColor"
    tab = page.driver.execute_script(script, ".tabs .swatch")
    page.until(lambda: page.num_held() > 1, "blocks are held")
    assert page.driver.execute_script(script, "#batch .swatch") == tab
    place = CELL / 2
    rgb = tuple(int(part) for part in tab[4:-1].split(","))
    page.until(lambda: rgb in {page.pixel("map", place + CELL * n, place)[:3] for n in range(4)},
               "the map has the colour")  # fmt: skip
    before = page.colours("map")
    ActionChains(page.driver).move_to_element(
        page.driver.find_element("css selector", "[role=tab]")
    ).perform()
    page.until(lambda: page.colours("map") > before, "the chat's blocks are ringed")
    page.press("stop")
    page.idle()


@pytest.mark.parametrize("dark", [False, True])
def test_the_inspected_block_is_visible(page, dark):
    """Its ring stands out from what was there and from a shared block's edge, in both themes."""
    colour = "return getComputedStyle(document.documentElement).getPropertyValue(arguments[0])"
    with page.screen(1366, 650, dark=dark):
        page.until(lambda: page.num_held() == 0, "nobody else is there")
        before = page.pixel("map", 0.5, 4)
        page.find("map").send_keys("\ue014")
        page.until(lambda: page.text("map-inspected").startswith("Block 1: "), "block 1")
        after = page.pixel("map", 0.5, 4)
        assert sum(abs(a - b) for a, b in zip(before, after, strict=True)) > 150
        edge, ring = (page.driver.execute_script(colour, f"--{n}") for n in ("shared-edge", "ring"))
        assert edge != ring


def test_the_guide_shows_two_chats_that_share_a_beginning(page):
    """One button asks in two chats; what a block is stands beside, and how many were shared."""
    page.press("guide")
    page.until(lambda: "blocks in two colours" in page.text("guide-said"), "they share")
    assert page.tabs()[-2:] == ["Guide: towers", "Guide: ships"]
    assert "A block is" in page.text("guide-panel")
    page.until(lambda: "Both are done." in page.text("guide-said"), "they are done")
    assert "They shared" in page.text("guide-said")
    page.press("guide-close")
    assert not page.find("guide-panel").is_displayed()


def test_a_timeline_is_drawn(page):
    """After an answer its timeline is drawn and summed up, and its chat is in the list."""
    page.ask("Hello")
    page.until(lambda: "then 59 steps" in page.text("timeline-summary"), "the timeline")
    assert page.colours("timeline-canvas") > 3
    chosen = "#requests tr.chosen th"
    page.until(lambda: page.driver.find_elements("css selector", chosen), "it is in the list")
    assert page.driver.find_element("css selector", chosen).text == "Hello"
    assert page.text("meter-first").endswith("s")


def test_a_comparison_finishes(page):
    """The comparison is drawn while it runs and ends with how much faster, and the same tokens."""
    page.until(lambda: page.num_held() == 0, "nobody else is there")
    page.set("compare-tokens", 24)
    page.find("compare-prompt").send_keys("\n")
    page.until(lambda: page.find("compare-canvas").is_displayed(), "it is drawn")
    page.until(lambda: "times faster" in page.text("compare-status"), "it ends")
    assert "The tokens are the same." in page.text("compare-status")
    assert page.colours("compare-canvas") > 3
    assert not page.find("compare-others").is_displayed()


def test_a_comparison_warns_of_others(page):
    """Requests that run now, and those that ran beside the comparison, are named beside it."""
    page.set("max-tokens", 300)
    page.ask("Hello")
    page.until(lambda: "1 other request on this server now" in page.text("compare-others"), "now")
    page.set("compare-tokens", 8)
    page.press("compare-go")
    page.until(lambda: "times faster" in page.text("compare-status"), "it ends")
    assert "Up to 1 other request ran beside this comparison" in page.text("compare-others")
    page.press("stop")
    page.idle()


def test_attention_is_drawn(page):
    """A telling layer is chosen already, and arrow keys tell the weights of the map's cells."""
    assert page.find("attention-layer").get_property("value") == "1"  # of 3
    page.set("attention-text", "abc")
    page.find("attention-text").send_keys("\n")
    page.until(lambda: "layer 1, the mean of all heads" in page.text("attention-status"), "a map")
    assert page.colours("attention-canvas") > 3
    assert page.text("attention-largest") == "100 %"
    page.find("attention-canvas").send_keys("\ue015")
    page.until(lambda: "with 100.0 %" in page.text("attention-status"), "the first weight")
    page.find("attention-canvas").send_keys("\ue014")
    page.until(lambda: "cannot look ahead" in page.text("attention-status"), "the causal triangle")
