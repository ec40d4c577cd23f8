"""server.fleet.prompt_blocks: prompts share as many digests as they have whole blocks in common."""

from __future__ import annotations

import json

import pytest

from server.fleet.prompt_blocks import BLOCK_CHARACTERS, MAX_BLOCKS, prompt_blocks


def blocks(**fields: object) -> tuple[str, ...]:
    return prompt_blocks(json.dumps(fields).encode())


def test_a_common_beginning_is_found():
    """Two prompts that differ in their third block share the first two digests and no other."""
    common = "x" * BLOCK_CHARACTERS * 2
    one, other = (blocks(prompt=common + tail * BLOCK_CHARACTERS) for tail in "ab")
    assert len(one) == len(other) == 3
    assert one[:2] == other[:2]
    assert one[2] != other[2]


def test_turns_that_follow_do_not_change_what_was_said():
    """A longer chat begins with the blocks of the shorter one, tools and all."""
    turns = [{"role": "user", "content": "y" * 2000}]
    tools = [{"type": "function", "function": {"name": "f"}}]
    short = blocks(messages=turns, tools=tools)
    longer = blocks(messages=[*turns, {"role": "assistant", "content": "z" * 900}], tools=tools)
    assert longer[: len(short) - 1] == short[:-1]
    assert len(longer) > len(short)


def test_salts_and_models_have_nothing_in_common():
    """The same text under another salt or model is another prompt."""
    text = "w" * BLOCK_CHARACTERS
    apart = ({}, {"cache_salt": "a"}, {"model": "m"})
    assert len({blocks(prompt=text, **more) for more in apart}) == 3


@pytest.mark.parametrize("body", [b"", b"{", b"[1]", b"\xff", b"[" * 100_000, b'{"prompt": 1}'])
def test_what_is_no_prompt_has_no_blocks(body):
    """Whatever a client sends is looked at in peace: a replica says what is wrong."""
    assert prompt_blocks(body) == ()


def test_the_work_for_a_long_prompt_is_bounded():
    """However long a prompt, no more blocks of it are looked at."""
    assert len(blocks(prompt="v" * BLOCK_CHARACTERS * (MAX_BLOCKS + 50))) == MAX_BLOCKS
    assert len(blocks(prompt=[7] * 500_000)) == MAX_BLOCKS
