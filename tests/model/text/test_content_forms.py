"""model.text.content_forms: a template is asked what it reads, and given that."""

from __future__ import annotations

import pytest

from model.chat_template import ChatTemplate

TURNS = [
    {"role": "system", "content": "be brief"},
    {"role": "user", "content": "hello there"},
    {"role": "assistant", "content": "yes?"},
    {"role": "user", "content": "good bye"},
]


def loop(body: str) -> str:
    """A template that writes each turn so."""
    return "{% for m in messages %}[{{ m.role }}:" + body + "]{% endfor %}"


TEXT = loop("{{ m.content }}")
TRIMMED = loop("{{ m.content | trim }}")
PARTS = loop("{% for p in m.content %}{{ p.text }}{% endfor %}")
TYPED = loop("{% for p in m.content if p.type == 'text' %}{{ p['text'] }}{% endfor %}")
FIRST = loop("{{ m.content[0].text }}")
EITHER = loop(
    "{% if m.content is string %}{{ m.content }}{% else %}"
    "{% for p in m.content %}{{ p.text }}{% endfor %}{% endif %}"
)
MIXED = loop("{% if m.role == 'user' %}{{ m.content[0].text }}{% else %}{{ m.content }}{% endif %}")
WITHOUT_SYSTEM = (
    "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}" + PARTS
)
EXPECTED = "[system:be brief][user:hello there][assistant:yes?][user:good bye]"


def written(template: ChatTemplate, turns: list[dict], **options: object) -> str:
    segments = template.render(turns, add_generation_prompt=False, **options)
    return "".join(segment.text for segment in segments)


@pytest.mark.parametrize("source", [TEXT, TRIMMED, PARTS, TYPED, FIRST, EITHER, MIXED])
def test_every_turn_is_shown_in_the_form_that_the_template_reads(source):
    """A text where it reads text, parts where it reads parts, role by role."""
    template = ChatTemplate(source)
    assert template.shows_users
    assert written(template, TURNS) == EXPECTED


def test_a_template_that_refuses_a_role_is_asked_without_it():
    """What it would say to a client is no reason not to know."""
    assert written(ChatTemplate(WITHOUT_SYSTEM), TURNS[1:]) == EXPECTED[17:]


def test_the_last_text_can_be_continued_in_parts():
    """The tag of what is to be continued goes into the part."""
    text = written(ChatTemplate(PARTS), TURNS[1:3], continue_final_message=True)
    assert text == "[user:hello there][assistant:yes?"


@pytest.mark.parametrize(
    "source",
    ["hello", loop("{{ m.text }}"), loop("{{ m.content.text }}"), "{{ messages[0].role }}"],
)
def test_a_template_that_shows_nobody_is_known(source):
    """Neither form brings the user's words into the prompt."""
    assert not ChatTemplate(source).shows_users


def test_a_template_that_refuses_everything_speaks_for_itself():
    """Its own words reach the client when a chat is asked for."""
    assert ChatTemplate("{{ raise_exception('not for chats') }}").shows_users


THINKING = loop("{% if m.reasoning_content %}<{{ m.reasoning_content }}>{% endif %}{{ m.content }}")
IN_TOOL_LOOPS = loop("{% if m.tool_calls %}<{{ m.reasoning_content }}>{% endif %}{{ m.content }}")


@pytest.mark.parametrize(
    ("source", "shows"),
    [
        (THINKING, True),
        (IN_TOOL_LOOPS, True),
        (TEXT, False),
        (TEXT + "{# a thinking model #}", False),
    ],
)
def test_a_template_is_asked_whether_it_shows_thoughts(source, shows):
    """By rendering some, not by the words in it."""
    assert ChatTemplate(source).shows_reasoning is shows
