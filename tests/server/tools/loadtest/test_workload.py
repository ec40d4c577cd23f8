"""Workloads are repeatable, as long as asked for, and read from the files people have."""

import json

import pytest

from server.errors import ConfigurationError
from server.tools.loadtest.workload import Lengths, random_prompts, read_prompts


def words(prompt):
    return prompt.text.split()


def test_lengths_are_those_asked_for():
    """Without a spread all prompts and answers have the same length."""
    prompts = random_prompts(20, Lengths(input_words=30, output_tokens=7), seed=1)
    assert {len(words(prompt)) for prompt in prompts} == {30}
    assert {prompt.max_tokens for prompt in prompts} == {7}
    assert len({prompt.text for prompt in prompts}) == 20


def test_lengths_vary_within_the_spread():
    """A spread makes lengths vary on both sides of the mean, within it."""
    lengths = Lengths(input_words=100, output_tokens=50, spread=0.5)
    counts = [len(words(prompt)) for prompt in random_prompts(300, lengths, seed=1)]
    assert min(counts) >= 50
    assert max(counts) <= 150
    assert sum(counts) / 300 == pytest.approx(100, rel=0.1)


def test_prefixes_are_shared():
    """All prompts begin with the same words, and differ behind them."""
    lengths = Lengths(input_words=10, output_tokens=5, prefix_words=40)
    prompts = random_prompts(5, lengths, seed=1)
    assert len({tuple(words(prompt)[:40]) for prompt in prompts}) == 1
    assert len({tuple(words(prompt)[40:]) for prompt in prompts}) == 5


def test_seeds_repeat():
    """The same seed makes the same prompts, another one others."""
    lengths = Lengths(input_words=9, output_tokens=5, spread=0.5)
    assert random_prompts(3, lengths, seed=1) == random_prompts(3, lengths, seed=1)
    assert random_prompts(3, lengths, seed=1) != random_prompts(3, lengths, seed=2)


def test_json_lines_are_read(tmp_path):
    """Prompts and conversations, one a line, with their own limits or the default."""
    path = tmp_path / "prompts.jsonl"
    chat = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}]
    lines = [{"prompt": "one", "max_tokens": 3}, {"messages": chat}]
    path.write_text("\n".join(map(json.dumps, lines)) + "\n\n")
    prompts = read_prompts(path, 5, output_tokens=9, seed=0)
    assert len(prompts) == 5
    assert {(prompt.text, prompt.max_tokens) for prompt in prompts} == {
        ("one", 3), ("be brief\n\nhi", 9),
    }  # fmt: skip


def test_share_gpt_is_read(tmp_path):
    """The first question is asked; the first answer tells how long an answer is."""
    path = tmp_path / "sharegpt.json"
    turns = [{"from": "human", "value": "why?"}, {"from": "gpt", "value": "x" * 400}]
    others = [[{"from": "gpt", "value": "unasked"}], []]
    path.write_text(json.dumps([{"conversations": each} for each in (turns, *others)]))
    (prompt,) = read_prompts(path, 1, output_tokens=9, seed=0)
    assert (prompt.text, prompt.max_tokens) == ("why?", 100)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{broken", "cannot read"),
        ("[3]", "no object"),
        ('{"text": "x"}', "none of 'prompt'"),
        ("", "no prompts"),
    ],
)
def test_broken_files_are_refused(tmp_path, text, message):
    """What cannot be read is named."""
    path = tmp_path / "prompts.jsonl"
    path.write_text(text)
    with pytest.raises(ConfigurationError, match=message):
        read_prompts(path, 1, output_tokens=1, seed=0)


def test_missing_files_are_refused(tmp_path):
    """A file that is not there is named."""
    with pytest.raises(ConfigurationError, match=r"missing\.jsonl"):
        read_prompts(tmp_path / "missing.jsonl", 1, output_tokens=1, seed=0)
