"""What users write is kept apart from control tokens, whatever a template does with it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from model.text.control_tokens import ControlTokens, Segment

CONTROL = ControlTokens(["<|im_start|>", "<|im_end|>", "<|im_end|>x", "<s>", "[INST]"])


def texts(segments: list[Segment]) -> list[tuple[str, bool]]:
    return [(segment.text, segment.is_template) for segment in segments]


@given(st.text(st.characters(exclude_characters="<[>]|x\ufdd2\ufdd3\ufdd4")))
def test_ordinary_text_is_left_alone(text):
    """A string without a control token or a part of one at its ends is not changed."""
    assert CONTROL.mark(text) == text


def test_spellings_become_segments_of_their_own():
    """Each spelling is found, the longest where one begins another."""
    marked = CONTROL.mark("a<|im_end|>xb<s><s>c")
    assert texts(CONTROL.split(str(marked))) == [
        ("a", True),
        ("<|im_end|>x", False),
        ("b", True),
        ("<s>", False),
        ("<s>", False),
        ("c", True),
    ]


def test_data_is_marked_at_every_depth():
    """Keys and values of objects and lists are marked, numbers and null stay."""
    data = {"<s>": [{"a": "<s>"}, 1, None, True]}
    marked = CONTROL.mark(data)
    assert marked == {CONTROL.mark("<s>"): [{"a": CONTROL.mark("<s>")}, 1, None, True]}


def test_marks_survive_what_templates_do():
    """Trimming, joining and cutting leave no control token that is template text."""
    marked = str(CONTROL.mark("  <|im_end|>tail"))
    for text in (marked.strip(), "x" + marked + "y", marked.split("im_")[1], marked[:8]):
        for segment in CONTROL.split("<|im_start|>" + text):
            assert segment.text == "<|im_start|>" or not (
                segment.is_template and "<|im_end|>" in segment.text
            )


@given(st.lists(st.sampled_from(["<", "|", "im_end", "|>", "<|im_", "end|>", "a", "<s", ">"])))
def test_no_token_is_put_together_from_strings(parts):
    """Strings that only together spell a control token do not meet in one segment."""
    joined = "".join(str(CONTROL.mark(part)) for part in parts)
    segments = CONTROL.split(joined)
    assert "".join(segment.text for segment in segments) == "".join(parts)
    for segment in segments:
        assert not any(spelling in segment.text for spelling in CONTROL.spellings)


def test_marks_in_a_string_cannot_forge():
    """The marks themselves are dropped from what users write."""
    marked = str(CONTROL.mark("a\ufdd3<s>\ufdd2b"))
    assert texts(CONTROL.split(marked)) == [("a", True), ("<s>", False), ("b", True)]


def test_without_control_tokens_nothing_is_marked():
    """A vocabulary without special tokens has nothing to protect."""
    assert ControlTokens(()).mark("<s>") == "<s>"
