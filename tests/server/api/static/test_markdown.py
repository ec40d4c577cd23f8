"""Markdown becomes these nodes, however it arrives, and never more than text in them."""

import pytest
from fakes import FakeEngine
from serving import serving

pytestmark = pytest.mark.slow
CODE = (
    '<figure class="code"><figcaption><span>{}</span><button type="button" class="quiet small">'
    'Copy</button></figcaption><pre tabindex="0"><code>{}</code></pre></figure>'
)
LINK = '<a href="{0}" target="_blank" rel="noopener noreferrer">{1}</a>'


@pytest.fixture(scope="module")
def static_url():
    """A server whose engine does not matter."""
    with serving(FakeEngine()) as url:
        yield url


@pytest.fixture
def markdown(open_page, static_url):
    """What the page makes of some Markdown."""
    return open_page(static_url).markdown


@pytest.mark.parametrize(
    ("text", "html"),
    [
        ("plain\nlines\n\nnext", "<p>plain<br>lines</p><p>next</p>"),
        ("# One\n### Three", "<h4>One</h4><h6>Three</h6>"),
        ("**b** *i* _i_", "<p><strong>b</strong> <em>i</em> <em>i</em></p>"),
        ("***both*** `c*d*`", "<p><strong><em>both</em></strong> <code>c*d*</code></p>"),
        ("snake_case_name 2 * 3 * 4", "<p>snake_case_name 2 * 3 * 4</p>"),
        ("**never closed", "<p>**never closed</p>"),
        ("- a\n- b\n  - c", "<ul><li>a</li><li>b<ul><li>c</li></ul></li></ul>"),
        ("- a\n\n1. x\n2. y", '<ul><li>a</li></ul><ol start="1"><li>x</li><li>y</li></ol>'),
        ("> quoted\n> on", "<blockquote><p>quoted<br>on</p></blockquote>"),
        ("a\n\n---\n\nb", "<p>a</p><hr><p>b</p>"),
        ("```python\nx = '<b>'\n```\nafter", CODE.format("python", "x = '&lt;b&gt;'")
         + "<p>after</p>"),
        ("```\nopen", CODE.format("code", "open")),
        ("[here](https://a.b/c).", f"<p>{LINK.format('https://a.b/c', 'here')}.</p>"),
        ("https://d.e/f.", f"<p>{LINK.format('https://d.e/f', 'https://d.e/f')}.</p>"),
        ("[x](javascript:alert(1))", "<p>[x](javascript:alert(1))</p>"),
        ("<b>&amp;</b>", "<p>&lt;b&gt;&amp;amp;&lt;/b&gt;</p>"),
        ("<script>x</script>", "<p>&lt;script&gt;x&lt;/script&gt;</p>"),
        (r"\*not\* \`this\`", "<p>*not* `this`</p>"),
    ],
)  # fmt: skip
def test_markdown_becomes_nodes(markdown, text, html):
    """Whole or letter by letter, the same nodes."""
    assert markdown(text) == html


def test_blocks_that_are_done_keep_their_nodes(open_page, static_url):
    """What the user has selected stays selected while the answer grows."""
    page = open_page(static_url)
    script = """
      const [done] = arguments;
      import(new URL("static/markdown.js", document.baseURI)).then(({ MarkdownView }) => {
        const box = document.createElement("div");
        const view = new MarkdownView(box);
        view.show("first\\n\\nsec");
        const [first, second] = box.children;
        view.show("first\\n\\nsecond");
        done([first === box.children[0], second === box.children[1]]);
      });
    """
    assert page.driver.execute_async_script(script) == [True, False]


@pytest.mark.parametrize("piece", ["*", "_a", "`", "[", "- ", "> ", "#", "```\n", "https://", "\\"])
def test_nothing_takes_more_than_linear_work(open_page, static_url, piece):
    """Sixteen times the text makes at most some sixteen times the nodes, and all of it is there."""
    page = open_page(static_url)
    script = """
      const [piece, done] = arguments;
      import(new URL("static/markdown.js", document.baseURI)).then(({ MarkdownView }) => {
        const sizes = [1000, 16000].map((count) => {
          const box = document.createElement("div");
          new MarkdownView(box).show(piece.repeat(count));
          return box.getElementsByTagName("*").length;
        });
        done(sizes);
      });
    """
    small, large = page.driver.execute_async_script(script, piece)
    assert large <= 17 * max(small, 20)
