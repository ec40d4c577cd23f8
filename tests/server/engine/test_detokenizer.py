"""Text that is sent equals the whole text, cut where a stop string is complete."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from server.engine.detokenizer import Detokenizer, RememberedSpeller, StopStrings
from server.request import SamplingParams

SPECIAL = 256


class ByteSpeller:
    """One token per byte, one special token, and whatever else a test adds."""

    def __init__(self, *extra: bytes) -> None:
        self._extra = extra

    def token_bytes(self, token_id: int) -> bytes:
        if token_id < SPECIAL:
            return bytes([token_id])
        return b"<|end|>" if token_id == SPECIAL else self._extra[token_id - SPECIAL - 1]

    def is_special(self, token_id: int) -> bool:
        return token_id == SPECIAL


def detokenizer(*stop: str, extra: Iterable[bytes] = (), **params: object) -> Detokenizer:
    speller = RememberedSpeller(ByteSpeller(*extra))
    return Detokenizer(speller, SamplingParams(max_tokens=9, stop=stop, **params))


def increments(target: Detokenizer, token_ids: Iterable[int]) -> tuple[list[str], str | None]:
    """Feed a text token by token as the engine does, and return each increment and the stop."""
    texts: list[str] = []
    for token_id in token_ids:
        text, stop = target.append(token_id)
        texts.append(text)
        if stop is not None:
            return texts, stop
    return [*texts, target.flush()], None


def text_of(target: Detokenizer, token_ids: Iterable[int]) -> str:
    """All that these tokens bring."""
    return "".join(increments(target, token_ids)[0])


def cut(content: bytes, data: st.DataObject) -> list[bytes]:
    """Some content in pieces of any lengths."""
    cuts = sorted(data.draw(st.sets(st.integers(0, len(content)))))
    return [content[a:b] for a, b in zip([0, *cuts], [*cuts, len(content)], strict=True)]


def first_stop(text: str, stops: Iterable[str]) -> tuple[int, int, str] | None:
    """Find the first stop to complete by looking at every beginning of the text in turn."""
    for end in range(len(text) + 1):
        endings = [stop for stop in stops if text[:end].endswith(stop)]
        if endings:
            stop = max(endings, key=len)
            return end - len(stop), end, stop
    return None


def test_whole_characters_arrive_at_once():
    """The bytes of a character are sent together, with its last one."""
    texts, _ = increments(detokenizer(), "Owl 🦉é".encode())
    assert texts == ["O", "w", "l", " ", "", "", "", "🦉", "", "é", ""]


@pytest.mark.parametrize("half", [b"\xf0", b"\xf0\x9f\xa6", b"\xe6\xbc", b"\xc3"])
def test_half_a_character_at_the_end_is_dropped(half):
    """A text that ends inside a character ends before it."""
    texts, _ = increments(detokenizer(), b"END" + half)
    assert "".join(texts) == "END"


@pytest.mark.parametrize("broken", [b"\xff", b"\xf0\x9fA", b"\xc0\xaf", b"\xed\xa0\x80", b"\x80"])
def test_impossible_bytes_are_replaced_at_once(broken):
    """Bytes that no later byte can complete become U+FFFD, as Python's own decoder has it."""
    texts, _ = increments(detokenizer(), broken)
    assert "".join(texts) == broken.decode("utf-8", "replace")
    assert texts[-1] == ""


@given(st.text(), st.data())
def test_increments_join_to_the_text(text, data):
    """However the bytes are split into tokens, the increments join to the text."""
    tokens = cut(text.encode(), data)
    ids = range(SPECIAL + 1, SPECIAL + 1 + len(tokens))
    assert text_of(detokenizer(extra=tokens), ids) == text


@given(st.binary(max_size=30) | st.lists(st.sampled_from([b"a", b"\xc3", b"\xa9"])).map(b"".join),
       st.data())  # fmt: skip
def test_arbitrary_bytes_equal_pythons_decoder(content, data):
    """Any bytes, in any tokens, give what Python decodes, except half a character at the end."""
    tokens = cut(content, data)
    ids = range(SPECIAL + 1, SPECIAL + 1 + len(tokens))
    text, whole = text_of(detokenizer(extra=tokens), ids), content.decode("utf-8", "replace")
    # The two bytes that begin a surrogate are as good as two impossible ones to some decoders.
    assert text in {whole, *(whole.removesuffix("\ufffd" * count) for count in (1, 2))}


@given(
    st.text(alphabet="abé", max_size=20),
    st.lists(st.text(alphabet="abé", min_size=1, max_size=5), max_size=6),
    st.booleans(),
)
@example("xabcabd", ["abd", "bd"], False)
@example("aab", ["ab", "b", "aab"], False)
def test_stops_equal_reading_character_by_character(text, stops, include):
    """Text is cut where the first stop is complete, the longest of several, however it arrives."""
    target = detokenizer(*stops, include_stop_str_in_output=include)
    texts, stop = increments(target, text.encode())
    expected = first_stop(text, stops)
    if expected is None:
        assert ("".join(texts), stop) == (text, None)
    else:
        start, end, name = expected
        assert ("".join(texts), stop) == (text[: end if include else start], name)


@given(
    st.text(alphabet="ab", max_size=20),
    st.lists(st.text(alphabet="ab", min_size=1, max_size=5), max_size=6),
)
def test_only_a_possible_stop_is_held_back(text, stops):
    """What was not sent yet is the longest ending that a stop begins with, never more."""
    target, sent = detokenizer(*stops), ""
    for end in range(1, len(text) + 1):
        released, stop = target.append(ord(text[end - 1]))
        if stop is not None:
            return
        sent += released
        endings = [text[start:end] for start in range(end)]
        possible = [e for e in endings if any(s.startswith(e) for s in stops)]
        assert text[len(sent) : end] == max(possible, key=len, default="")


def test_a_stop_inside_a_token_cuts_the_token():
    """A stop that begins and ends within tokens is cut out exactly."""
    target = detokenizer("risST", extra=[b" Paris", b"STOP"])
    assert target.append(SPECIAL + 1) == (" Pa", None)
    assert target.append(SPECIAL + 2) == ("", "risST")


def test_special_tokens_are_skipped_unless_wanted():
    """Control tokens add no text, or their spelling if the client asks for them."""
    assert text_of(detokenizer(), [65, SPECIAL, 66]) == "AB"
    assert text_of(detokenizer(skip_special_tokens=False), [65, SPECIAL]) == "A<|end|>"


def test_white_space_is_exact():
    """No space is added, eaten or cleaned up."""
    text = "  two  , spaces \t tab 's \r\n "
    assert text_of(detokenizer(), text.encode()) == text


def test_a_stop_before_min_tokens_does_not_end():
    """A stop completed before min_tokens tokens is text; one completed by that token counts."""
    target = detokenizer("ab", "b", min_tokens=3)
    assert increments(target, b"abb") == (["", "ab", ""], "b")
    assert increments(detokenizer("b", min_tokens=2), b"ab") == (["a", ""], "b")


def test_hundreds_of_stops_are_all_honoured():
    """Each of many stops ends a text that holds only this one."""
    stops = [f"<{number}>" for number in range(300)]
    for stop in stops[::50]:
        texts, found = increments(detokenizer(*stops), f"<30{stop}".encode())
        assert ("".join(texts), found) == ("<30", stop)


def test_a_match_before_the_checked_text_is_not_found_again():
    """Looking again starts behind what was looked at."""
    stops = StopStrings(["b", "abc"])
    assert stops.find("abd", checked=2) is None
    assert stops.find("abc", checked=2) == ("abc", 0)


def test_the_stop_that_is_complete_first_is_found():
    """A shorter stop within a longer one ends the text before it; one that ends later does not."""
    assert StopStrings(["bcd", "bc"]).find("abcd", checked=0) == ("bc", 1)
    assert StopStrings(["abc", "de"]).find("xxxabc--de", checked=0) == ("abc", 3)


def test_long_stops_cost_no_more_than_they_hold():
    """Of 256 stops of 1024 characters no set of their beginnings is kept."""
    stops = [f"{number:04}" * 256 for number in range(256)]
    tracemalloc.start()
    try:
        found = StopStrings(stops)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 200_000
    assert found.overlap("x" + stops[77][:1023]) == 1023
    assert found.overlap("0255" + "0001x") == 0


def test_a_token_is_spelled_once():
    """A remembered spelling is the tokenizer's, which is asked for each token once."""
    asked = []

    class Counting(ByteSpeller):
        def token_bytes(self, token_id: int) -> bytes:
            asked.append(token_id)
            return super().token_bytes(token_id)

    speller, plain = RememberedSpeller(Counting()), ByteSpeller()
    for _ in range(3):
        for token_id, text in ((97, "a"), (195, None), (SPECIAL, "<|end|>")):
            data, is_special = plain.token_bytes(token_id), plain.is_special(token_id)
            assert speller.spell(token_id) == (data, text, is_special)
    assert asked == [97, 195, SPECIAL]
