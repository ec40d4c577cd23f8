"""server.cli: commands, their help, and errors in one line."""

from __future__ import annotations

import io
import re
import socket
import subprocess
import sys

import pytest
import typer
from fakes import FakeEngine
from serving import serving
from typer.main import get_command
from typer.testing import CliRunner

from server import cli
from server.api.handlers.api_keys import ApiKeys
from server.api.http_server import open_unix_socket
from server.commands import serve as serve_command
from server.commands.options import with_options
from server.config import EngineConfig, ServerConfig
from server.errors import ConfigurationError
from server.version import VERSION


def run(monkeypatch, *arguments: str, stdin: str = "") -> int:
    """The exit code of a command line, as the installed script runs it."""
    monkeypatch.setattr(sys, "argv", ["kvserve", *arguments])
    monkeypatch.setattr(sys, "stdin", io.StringIO(stdin))
    with pytest.raises(SystemExit) as ended:
        cli.main()
    return int(ended.value.code or 0)


@pytest.mark.parametrize(("command", "kind"), [("serve", ServerConfig), ("generate", EngineConfig)])
def test_help_names_every_option_with_its_variable(command, kind):
    """An option of the configuration cannot be forgotten, as the help is made from it."""
    result = CliRunner().invoke(cli.app, [command, "--help"], env={"COLUMNS": "80"})
    assert result.exit_code == 0
    assert max(map(len, result.output.splitlines())) <= 80
    words = " ".join(result.output.split())
    for name, field in kind.model_fields.items():
        assert re.search(rf"--{name.replace('_', '-')}\b", words)
        assert f"KVSERVE_{name.upper()}" in words
        assert " ".join(field.description.split(";")[0].split()) in words


@pytest.mark.parametrize("name", list(get_command(cli.app).commands))
def test_the_list_of_commands_says_what_each_says_of_itself(name):
    """The list is shown without importing the commands, so it repeats the first line of each."""
    listed = get_command(cli.app).commands[name].help
    for arguments in ([name, "--help"], ["--help"]):
        shown = CliRunner().invoke(cli.app, arguments)
        assert shown.exit_code == 0
        assert listed in " ".join(shown.output.split())
        assert not re.search("[\u2500-\u257f]", shown.output)  # no boxes


def test_the_version_is_one_line():
    """Of the program, and nothing is started."""
    shown = CliRunner().invoke(cli.app, ["--version"])
    assert (shown.exit_code, shown.output) == (0, f"kvserve {VERSION}\n")


def test_a_command_imports_only_what_it_needs():
    """A terminal that only chats pays for no engine, and a server for no terminal chat."""
    for command, foreign in (
        ("--help", {"torch", "fastapi", "httpx", "matplotlib"}),
        ("chat", {"torch", "fastapi", "matplotlib"}),
        ("serve", {"torch", "httpx", "matplotlib", "server.commands.terminal_chat"}),
    ):
        arguments = ["kvserve", *dict.fromkeys((command, "--help"))]
        code = (
            f"import sys; sys.argv = {arguments}; from server import cli\n"
            "try: cli.main()\n"
            f"except SystemExit: sys.exit(' '.join({foreign} & set(sys.modules)))"
        )
        ran = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
        assert ran.stderr.strip() == b"", command


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["serve", "--port", "70000"], "--port"),
        (["serve", "--model", "/no/such.gguf", "--port", "0"], "/no/such.gguf"),
        (["generate", "hi", "--model", "/no/such.gguf"], "/no/such.gguf"),
        (["generate", "hi", "--block-size", "17"], "power of two"),
        (["info", "--model", "/no/such.gguf"], "/no/such.gguf"),
    ],
)
def test_a_users_mistake_is_one_line_on_stderr(monkeypatch, capfd, arguments, words):
    """With a non-zero exit code and no traceback."""
    assert run(monkeypatch, *arguments, *(["--log-level", "error"] * (arguments[0] == "serve")))
    out, err = capfd.readouterr()
    assert out == ""
    lines = [line for line in err.splitlines() if line.startswith("kvserve: ")]
    assert len(lines) == 1
    assert words in lines[0]
    assert "Traceback" not in err


def test_generate_streams_a_continuation(monkeypatch, capfd, checkpoint):
    """The scripted model writes its page."""
    path = str(checkpoint("script-gpt2"))
    arguments = ["--model", path, "--temperature", "0", "--kv-cache-memory", "64MiB"]
    assert run(monkeypatch, "generate", "A", *arguments, "--threads", "1") == 0
    assert capfd.readouterr().out == "Owl 🦉 says: END-OF-LINE\nnext é漢字 done\n"


def test_generate_can_ask_through_the_template(monkeypatch, capfd, checkpoint):
    """The scripted model's template is one token."""
    path = str(checkpoint("script-gpt2"))
    arguments = ["--model", path, "--temperature", "0", "--kv-cache-memory", "64MiB", "--chat"]
    assert run(monkeypatch, "generate", "hello", *arguments, "--threads", "1") == 0
    assert capfd.readouterr().out.startswith("Owl")


def test_info_describes_the_model(monkeypatch, capfd, checkpoint):
    """Without loading its weights."""
    assert run(monkeypatch, "info", "--model", str(checkpoint("rand-llama-tied"))) == 0
    out = capfd.readouterr().out
    assert "4 query, 2 key/value" in out
    assert "kvserve" in out
    assert "context that fits" in out
    assert "512 tokens" in out


def test_chat_answers_each_line(monkeypatch, capfd):
    """Lines of a pipe are questions, and the end of it ends the chat."""
    with serving(FakeEngine("pong")) as url:
        assert run(monkeypatch, "chat", "--url", url, stdin="ping\n\nping\n") == 0
    assert capfd.readouterr().out.split() == ["pong", "pong"]


def test_chat_without_a_server_is_one_line(monkeypatch, capfd):
    """The user learns that nobody answers there."""
    assert run(monkeypatch, "chat", "--url", "http://127.0.0.1:9", stdin="ping\n") == 1
    assert "kvserve: no answer from http://127.0.0.1:9" in capfd.readouterr().err


class Terminal(io.StringIO):
    """Somebody who types."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("system", "code"), [([], 0), (["--system", "refuse"], 1)], ids=["answered", "refused"]
)
def test_chat_greets_who_sits_at_a_terminal(monkeypatch, capfd, system, code):
    """With the model, the address and the keys to press; a last question that failed is a code."""
    with serving(FakeEngine("pong")) as url:
        monkeypatch.setattr(sys, "argv", ["kvserve", "chat", "--url", url, *system])
        monkeypatch.setattr(sys, "stdin", Terminal("ping\n"))
        with pytest.raises(SystemExit) as ended:
            cli.main()
    shown = capfd.readouterr()
    assert int(ended.value.code or 0) == code
    assert shown.out.startswith(f"fake at {url}\nEnter sends, Ctrl-C stops an answer, Ctrl-D")
    assert ("pong" in shown.out) == (code == 0)
    assert ("chat template refuses" in shown.err) == (code == 1)


def test_keys_may_be_given_one_by_one():
    """Each occurrence of the option is one more key."""
    found = []

    @with_options(ServerConfig)
    def command(config: ServerConfig) -> None:
        found.append(ApiKeys.from_config(config))

    app = typer.Typer()
    app.command()(command)
    assert CliRunner().invoke(app, ["--api-key", "a", "--api-key", "b,c"]).exit_code == 0
    assert [found[0].accept(key) for key in (b"a", b"b", b"c", b"d")] == [True, True, True, False]


def test_sigterm_in_the_first_seconds_ends_well():
    """A server that is told to end before it is one has nothing to finish: code 0."""
    code = (
        "import os, signal, sys\n"
        "from server import cli\n"
        "sys.argv = ['kvserve', 'serve']\n"
        "cli.app = lambda: os.kill(os.getpid(), signal.SIGTERM)\n"
        "cli.main()\n"
        "sys.exit(9)\n"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    "error", [OSError(28, "No space left on device"), MemoryError(), OverflowError("too large")]
)
def test_whatever_ends_a_start_is_one_line(error):
    """Also what no error of ours stands for."""
    code = (
        "import sys\n"
        "from server import cli\n"
        f"def fail(): raise {error!r}\n"
        "cli.app = fail\n"
        "cli.main()\n"
    )
    command = [sys.executable, "-c", code]
    ended = subprocess.run(command, check=False, capture_output=True, text=True)
    assert ended.returncode == 1
    assert ended.stderr.startswith("kvserve: ")
    assert len(ended.stderr.splitlines()) == 1


def test_an_address_of_ipv6_stands_in_brackets():
    """So that what is printed can be pasted."""
    with socket.socket(socket.AF_INET6) as bound:
        bound.bind(("::1", 0))
        port = bound.getsockname()[1]
        address = serve_command._address(ServerConfig(host="::1"), bound)
    assert address == f"http://[::1]:{port}"


def test_a_unix_socket_serves_and_is_taken_over(tmp_path):
    """One that was left behind is replaced; one that is served is not."""
    path = tmp_path / "kvserve.sock"
    open_unix_socket(path).close()
    with open_unix_socket(path) as bound:
        bound.listen()
        with pytest.raises(ConfigurationError, match="cannot listen on"):
            open_unix_socket(path)
