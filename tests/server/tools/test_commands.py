"""The commands as a user runs them: on a small model, on a live server, into files."""

import json
import signal
import subprocess
import sys

import httpx
import pytest
from engines import load_engine
from serving import serving, wait_until
from typer.testing import CliRunner

from server.cli import app
from server.engine.async_engine import AsyncEngine
from server.errors import ConfigurationError

pytest.importorskip("matplotlib")
MODEL = ["--threads", "1", "--kv-cache-memory", "64MiB", "--model"]
PNG = b"\x89PNG"


def kvserve(*arguments: object, code: int = 0) -> str:
    """Run a command; returns what it printed."""
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == code, result.output
    return result.output


def test_compare_writes_table_json_and_figure(checkpoint, tmp_path):
    """One command measures both ways and leaves a table, a JSON file and a picture."""
    figure, answer = tmp_path / "gain.png", tmp_path / "gain.json"
    printed = kvserve(
        "compare", *MODEL, checkpoint("rand-llama-tied"), "--lengths", "60,80", "--whole", 64,
        "--figure", figure, "--json", answer,
    )  # fmt: skip
    assert "are the same" in printed
    found = json.loads(answer.read_text())
    assert [row["length"] for row in found["rows"]] == [60, 80]
    assert found["equal"] is True
    assert found["rows"][1]["uncached"]["total_is_estimate"] is True
    assert figure.read_bytes().startswith(PNG)
    assert figure.stat().st_size < 100_000


def test_attention_writes_a_map_and_its_numbers(checkpoint, tmp_path):
    """Tokens and rows that sum to 1 as JSON, and the same as a picture."""
    figure, answer = tmp_path / "map.svg", tmp_path / "map.json"
    kvserve(
        "attention", "look back $here$\n", *MODEL, checkpoint("rand-gemma3"), "--layer", 0,
        "--head", 2, "--figure", figure, "--json", answer,
    )  # fmt: skip
    found = json.loads(answer.read_text())
    assert (found["layer"], found["head"]) == (0, 2)
    assert "".join(found["tokens"]).endswith("look back $here$\n")
    for row in found["weights"]:
        assert sum(row) == pytest.approx(1.0, abs=1e-5)
    assert "<svg" in figure.read_text()


def test_attention_without_files_prints(checkpoint):
    """Without an output the strongest weights are printed."""
    printed = kvserve("attention", "look", *MODEL, checkpoint("rand-llama-tied"))
    assert "attends most to" in printed
    assert "100%" in printed


def test_attention_shows_a_telling_layer_by_default(checkpoint, tmp_path):
    """The layer a third of the way up, as the page does; --mean is that of all."""
    answer = tmp_path / "map.json"
    command = ["attention", "look", *MODEL, checkpoint("rand-llama-tied"), "--json", answer]
    for more, layer in (([], 1), (["--layer", 0], 0), (["--mean"], None)):
        kvserve(*command, *more)
        assert json.loads(answer.read_text())["layer"] == layer
    with pytest.raises(ConfigurationError, match="--layer is 1: give one of them"):
        kvserve(*command, "--mean", "--layer", 1)


def test_attention_names_what_is_out_of_bounds(checkpoint):
    """A layer that the model does not have is refused by name."""
    with pytest.raises(ConfigurationError, match="layer is 3; expected 0 to 2"):
        kvserve("attention", "look", *MODEL, checkpoint("rand-llama-tied"), "--layer", 3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--figure", "there/is/none.png"], "no folder"),
        (["--figure", "gain.bmp"], "must end in one of"),
        (["--lengths", "a,b"], "expected whole numbers"),
    ],
)
def test_faults_are_found_before_anything_is_measured(options, message):
    """What cannot end well does not begin."""
    with pytest.raises(ConfigurationError, match=message):
        kvserve("compare", "--model", "no/such/model", *options)


def test_figures_without_matplotlib_are_refused_with_advice(monkeypatch, tmp_path):
    """The message says what to install."""
    monkeypatch.setattr("server.tools.plots.find_spec", lambda _: None)
    with pytest.raises(ConfigurationError, match=r"pip install 'kvserve\[plots\]'"):
        kvserve("compare", "--figure", tmp_path / "gain.png")


@pytest.fixture(scope="module")
def url(checkpoint):
    """Where a small model is served."""
    with serving(AsyncEngine(lambda: load_engine(checkpoint("rand-llama-tied")))) as address:
        yield address


@pytest.mark.parametrize(
    "load", [["--concurrency", "1,3"], ["--request-rate", "50,100", "--endpoint", "completions"]]
)
def test_load_test_sweeps_over_a_live_server(url, tmp_path, load):
    """Every request of every level is answered in full and reported, drawn and drawn again."""
    answer, figure, timeline = (tmp_path / name for name in ("l.json", "l.png", "t.png"))
    printed = kvserve(
        "loadtest", "--url", url, *load, "--num-prompts", 6, "--input-len", 5, "--max-tokens", 4,
        "--goodput", "ttft:60000,e2el:60000", "--json", answer, "--figure", figure,
        "--timeline", timeline,
    )  # fmt: skip
    assert "time to first token" in printed
    assert ("meant to be sent" in printed) == ("--request-rate" in load)
    for level in json.loads(answer.read_text())["runs"]:
        assert (level["completed"], level["failed"]) == (6, 0)
        assert level["total_output_tokens"] == 24
        assert level["output_lens"] == [4] * 6
        assert level["request_goodput"] == pytest.approx(level["request_throughput"])
        assert 0 < level["median_ttft_ms"] <= level["median_e2el_ms"]
    assert figure.read_bytes().startswith(PNG)
    assert timeline.read_bytes().startswith(PNG)


def test_load_test_counts_failures_and_says_so(url, tmp_path):
    """Requests that the server refuses are failures by kind, and the exit code tells."""
    answer, timeline = tmp_path / "l.json", tmp_path / "t.png"
    printed = kvserve(
        "loadtest", "--url", url, "--num-prompts", 3, "--input-len", 5, "--max-tokens", 9999,
        "--warm-up", 0, "--json", answer, "--timeline", timeline, code=1,
    )  # fmt: skip
    assert "3 failed with HTTP 400" in printed
    assert json.loads(answer.read_text())["errors_by_kind"] == {"HTTP 400": 3}
    assert timeline.read_bytes().startswith(PNG)


def test_load_test_that_is_interrupted_leaves_what_it_measured(url, tmp_path):
    """Ctrl-C in the middle still writes the table and the file, and the exit code says so."""
    answer = tmp_path / "l.json"
    script = "from server.cli import main; main()"
    options = ["--num-prompts", "99999", "--input-len", "5", "--max-tokens", "4"]
    command = [sys.executable, "-c", script, "loadtest", "--url", url, *options]

    def num_generated() -> int:
        return httpx.get(f"{url}/kv").json()["totals"]["num_generated_tokens"]

    before = num_generated()
    process = subprocess.Popen(
        [*command, "--json", str(answer)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert wait_until(lambda: num_generated() > before + 100, 60)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "unfinished" in out
    assert "only what had ended is counted" in err
    found = json.loads(answer.read_text())
    assert 0 < found["completed"] < 99999
    assert found["completed"] + found["unfinished"] == 99999


def test_load_test_needs_a_server():
    """A server that is not there is one clear error."""
    with pytest.raises(ConfigurationError, match="Is the server running"):
        kvserve("loadtest", "--url", "http://127.0.0.1:9")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--concurrency", "1", "--request-rate", "1"], "give one of them"),
        (["--concurrency", "0"], "above 0"),
        (["--concurrency", "1.5"], "whole numbers"),
        (["--request-rate", "x"], "above 0"),
        (["--endpoint", "x"], "--endpoint"),
        (["--goodput", "x:1"], "--goodput"),
    ],
)
def test_load_test_options_are_checked(options, message):
    """What is out of bounds is named before anything is sent."""
    with pytest.raises(ConfigurationError, match=message):
        kvserve("loadtest", "--url", "http://127.0.0.1:9", *options)


def test_help_needs_no_torch():
    """The command line starts quickly: torch is imported when a model is needed."""
    code = "import sys, server.cli; sys.exit('torch' in sys.modules or 'matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.slow
@pytest.mark.smollm2
def test_compare_shows_the_gain_on_smollm2(smollm2_gguf, tmp_path):
    """On the default model the cache makes a step of 192 tokens several times faster."""
    answer = tmp_path / "gain.json"
    kvserve("compare", "--model", smollm2_gguf, "--lengths", "64,192", "--whole", 64,
            "--json", answer)  # fmt: skip
    found = json.loads(answer.read_text())
    assert found["equal"] is True
    assert found["rows"][-1]["cache_bytes"] > 0
    assert found["rows"][-1]["uncached"]["step_flops"] > found["rows"][-1]["cached"]["step_flops"]


def test_server_without_models_is_named(url):
    """Something that is no OpenAI server is told apart from one that is not there."""
    with pytest.raises(ConfigurationError, match=r"does not name its models \(HTTP 404\)"):
        kvserve("loadtest", "--url", f"{url}/elsewhere")


def test_compare_forms_writes_table_json_and_figure(checkpoint, tmp_path):
    """Four forms at each length, with the bytes that each keeps, and a picture of both."""
    figure, answer = tmp_path / "forms.png", tmp_path / "forms.json"
    printed = kvserve(
        "compare", "--forms", "--model", checkpoint("rand-qwen3"), "--threads", 1,
        "--lengths", "300,600", "--figure", figure, "--json", answer,
    )  # fmt: skip
    assert "one layer of 4 heads of 32, 1 CPU thread" in printed
    found = json.loads(answer.read_text())
    kept = {(step["form"], step["length"]): step["num_bytes"] for step in found["steps"]}
    token = 2 * 4 * 4 * 32  # a key and a value in float32, in 4 heads of 32
    assert kept == {
        **{("recomputing everything", n): 0 for n in (300, 600)},
        **{("full cache", n): n * token for n in (300, 600)},
        **{("window", n): (256 + 4) * token for n in (300, 600)},
        **{("linear state", n): 4 * 4 * (32 * 32 + 32) for n in (300, 600)},
    }
    assert all(step["step_ms"] > 0 for step in found["steps"])
    assert figure.read_bytes().startswith(PNG)
