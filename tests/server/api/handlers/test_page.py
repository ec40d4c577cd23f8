"""The page's files are served strictly; what they do is tested in ../static, in a browser."""

import re
from pathlib import Path

import httpx
import pytest
from fakes import FakeEngine
from serving import serving

STATIC = Path(__file__).parents[4] / "server" / "api" / "static"
FILES = sorted(path.name for path in STATIC.iterdir())
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}


@pytest.fixture(scope="module")
def static_client():
    """A client of a server whose engine does not matter."""
    with serving(FakeEngine()) as url, httpx.Client(base_url=url) as client:
        yield client


@pytest.mark.parametrize("name", FILES)
def test_files_have_their_types(static_client, name):
    """Each file is served as it lies there, with its type, a policy and a tag that saves a load."""
    answer = static_client.get(f"/static/{name}")
    assert answer.content == (STATIC / name).read_bytes()
    assert answer.headers["content-type"] == TYPES[Path(name).suffix]
    assert "script-src 'self'" in answer.headers["content-security-policy"]
    assert answer.headers["x-content-type-options"] == "nosniff"
    again = static_client.get(f"/static/{name}", headers={"If-None-Match": answer.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")


def test_page_is_at_the_root(static_client):
    """The page is what a browser finds at /, and it allows nothing that is not its own."""
    answer = static_client.get("/")
    assert answer.text == (STATIC / "index.html").read_text(encoding="utf-8")
    policy = answer.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'")
    assert "unsafe" not in policy
    assert "http" not in policy


@pytest.mark.parametrize("name", ["nothing.js", "..%2Fapp.py", "%2Fetc%2Fpasswd", ""])
def test_nothing_else_is_served(static_client, name):
    """Only the page's own files can be had."""
    answer = static_client.get(f"/static/{name}")
    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "not_found"


@pytest.mark.parametrize("name", FILES)
def test_files_stand_alone(name):
    """No file loads anything from elsewhere, and every file that one names is there."""
    text = (STATIC / name).read_text(encoding="utf-8")
    assert not re.search(r"""["'(]\s*(https?:)?//(?!www\.w3\.org/2000/svg)""", text)
    named = re.findall(r"""(?:static/|from "\./)([\w.-]+)""", text)
    assert set(named) <= set(FILES)


@pytest.mark.parametrize("name", [name for name in FILES if name.endswith((".js", ".html"))])
def test_every_address_is_relative(name):
    """The page works under any path prefix, as nothing it asks for begins with a slash."""
    text = (STATIC / name).read_text(encoding="utf-8")
    assert not re.search(r"""(?:href|src)="/|(?:getJson|events|call|fetch)\(["'`]/""", text)


@pytest.mark.parametrize("name", [name for name in FILES if name.endswith((".js", ".html"))])
def test_text_is_never_markup(name):
    """Nothing that came from a model or a user can become HTML or code."""
    text = (STATIC / name).read_text(encoding="utf-8")
    ways = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function"
    assert not re.search(ways + r"|\son\w+=\"|\sstyle=\"", text)
