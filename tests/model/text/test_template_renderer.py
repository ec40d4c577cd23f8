"""A template can refuse, fail, run on or attack; nothing but an error comes of it."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from model.errors import TemplateError
from model.text.template_renderer import TemplateLimitError, TemplateRenderer


@pytest.fixture(scope="module")
def renderer():
    renderer = TemplateRenderer()
    yield renderer
    renderer.close()


def test_variables_reach_the_template(renderer):
    """A template sees its variables, of any JSON type and in any script."""
    text = renderer.render("{{ a.b[1] }} {{ c }}", {"a": {"b": [0, 1.5]}, "c": "漢🦉\u2028"})
    assert text == "1.5 漢🦉\u2028"


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{% for x in [1, 2, 3] %}{% if x == 2 %}{% break %}{% endif %}{{ x }}{% endfor %}", "1"),
        ("{% generation %}a{{ 1 }}{% endgeneration %}", "a1"),
        ("  {% if true %}\nx\n  {% endif %}\ny", "x\ny"),
        ('{{ {"a": "<é>", "b": [1]} | tojson }}', '{"a": "<é>", "b": [1]}'),
        ('{{ {"b": 1, "a": 2} | tojson(indent=1, sort_keys=true) }}', '{\n "a": 2,\n "b": 1\n}'),
        ('{{ "é\ufdd2" | tojson(ensure_ascii=true) }}', '"\\u00e9\ufdd2"'),
        ("{{ '\\\\ufdd2' | tojson(ensure_ascii=true) }}", r'"\\ufdd2"'),
        ('{{ strftime_now("%Y") | length }}', "4"),
        ("{% set n = namespace(self=1) %}{% set n.x = 2 %}{{ n.self + n.x }}", "3"),
        ("{{ dict(a=1).a }}{{ nothing }}", "1"),
        ("{{ lipsum(n=1) | length > 0 }}", "True"),
    ],
)
def test_templates_have_what_they_expect(renderer, source, expected):
    """The tags, filters and functions of the reference implementation work alike."""
    assert renderer.render(source, {}) == expected


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{{ raise_exception('roles must <alternate>') }}", "^roles must <alternate>$"),
        ("a\n{% if %}", "^line 2: "),
        ("{{ 1 + 'a' }}", "unsupported operand"),
        ("{{ messages[0].content + 'x' }}", "messages"),
        ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "nested too deeply"),
        ("{{ range(10 ** 9) | list }}", "Range too big"),
        ("{{ 'x' * 10 ** 10 }}", "too much memory"),
    ],
)
def test_faults_are_sentences(renderer, source, message):
    """A template's own words, or a short reason, say what is wrong."""
    with pytest.raises(TemplateError, match=message):
        renderer.render(source, {})


@pytest.mark.parametrize(
    "attack",
    [
        "{{ ''.__class__ }}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ cycler.__init__.__globals__.os.popen('touch FILE').read() }}",
        "{{ self._TemplateReference__context }}{{ lipsum.__globals__ }}",
        "{{ (1).__class__.__base__ }}",
        "{{ '{0.__class__.__init__.__globals__}'.format(cycler) }}",
        "{{ 'x' | attr('__class__') }}",
        "{{ dict.__init__ }}",
        "{% set n = namespace() %}{% set n.__class__ = 1 %}",
        "{{ messages.append(1) }}",
        "{% include 'FILE' %}",
    ],
)
def test_internals_are_out_of_reach(renderer, attack, tmp_path):
    """Every way to Python's internals is an error and creates nothing."""
    file = tmp_path / "created"
    with pytest.raises(TemplateError):
        renderer.render(attack.replace("FILE", str(file)), {"messages": []})
    assert not file.exists()


def test_the_process_cannot_open_files(tmp_path):
    """Even a template that broke out of Jinja could not create a file."""
    program = Path(__file__).parents[3] / "model" / "text" / "template_sandbox.py"
    attack = (
        f"import runpy; names = runpy.run_path({str(program)!r}); names['confine']();"
        f"open({str(tmp_path / 'created')!r}, 'w')"
    )
    done = subprocess.run([sys.executable, "-c", attack], capture_output=True, check=False)
    assert done.returncode != 0
    assert not (tmp_path / "created").exists()


@pytest.mark.parametrize(
    "source",
    [
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        (
            "{% set n = namespace(x=1) %}"
            "{% for i in range(60) %}{% set n.x = [n.x, n.x] %}{% endfor %}{{ n.x }}"
        ),
    ],
)
def test_endless_templates_end(source):
    """A template that would run for hours is ended, and the next one is rendered again."""
    renderer = TemplateRenderer(seconds=0.5)
    with pytest.raises(TemplateError, match=r"takes longer than 0\.5 s|too much memory"):
        renderer.render(source, {})
    assert renderer.render("next", {}) == "next"
    renderer.close()


def test_a_lost_process_is_replaced():
    """When the process dies for another reason, the next rendering starts another."""
    renderer = TemplateRenderer()
    assert renderer.render("a", {}) == "a"
    process = renderer._idle[0]._process
    process.kill()
    process.wait()
    assert renderer.render("b", {}) == "b"
    with pytest.raises(TemplateLimitError, match="unexpectedly"):
        renderer._idle[0].exchange(b"no request\n")
    assert renderer.render("c", {}) == "c"
    renderer.close()


def test_variables_must_be_plain_data(renderer):
    """What is not JSON is refused."""
    with pytest.raises(TemplateError, match="plain data"):
        renderer.render("", {"x": object()})


def test_threads_share_a_renderer(renderer):
    """Renderings from many threads do not mix."""
    with ThreadPoolExecutor(8) as pool:
        texts = list(pool.map(lambda n: renderer.render("{{ n }}", {"n": n}), range(100)))
    assert texts == [str(n) for n in range(100)]


@pytest.mark.parametrize(
    "source",
    [
        "{{ 'a' * 30000000 }}",
        "{% for i in range(9000) %}{% for j in range(9000) %}aaaaaaaa{% endfor %}{% endfor %}",
        "{{ strftime_now('%c' * 1000000) }}",
        "{{ raise_exception('a' * 100000000) }}",
        "{{ 'a' * 30000000 + none }}",
        "{{ missing('a' * 30000000) }}",
    ],
)
def test_what_a_template_makes_is_bounded(renderer, source):
    """Its text, its errors and its own words: the answer is an error that fits a screen."""
    with pytest.raises(TemplateError) as error:
        renderer.render(source, {})
    assert len(str(error.value)) < 2000
