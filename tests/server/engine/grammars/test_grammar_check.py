"""The process that tries grammars out."""

import json
import subprocess
import sys

import pytest

from server.engine.grammars import grammar_check


def ask(text: str, kind: str = "llguidance") -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-P", "-s", grammar_check.__file__],
        input=json.dumps({"format": kind, "text": text}).encode(),
        capture_output=True,
        check=False,
    )


def test_a_good_grammar_comes_back():
    """Rewritten only if it was EBNF."""
    assert json.loads(ask('start: "a"').stdout) == {"grammar": 'start: "a"'}
    rewritten = json.loads(ask('root ::= "a"', "ebnf").stdout)["grammar"]
    assert "start:" in rewritten


def test_a_bad_grammar_is_explained():
    """The answer is the engine's own words."""
    assert "error" in json.loads(ask("start: (").stdout)
    assert "error" in json.loads(ask("root ::= (", "ebnf").stdout)


def test_a_stack_that_overflows_is_the_process_s_own():
    """It dies with a signal and says nothing."""
    rules = "".join(f"a{i}: a{i + 1}\n" for i in range(3000))
    done = ask(f'start: a0\n{rules}a3000: "x"')
    assert done.returncode < 0
    assert done.stdout == b""


@pytest.mark.parametrize("name", ["CPU_SECONDS", "MEMORY_BYTES", "STACK_BYTES"])
def test_limits_are_limits(name):
    """None is switched off by a zero."""
    assert getattr(grammar_check, name) > 0
