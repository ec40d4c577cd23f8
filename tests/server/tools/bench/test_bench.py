"""The benchmark counts the right tokens over the right seconds, and knows the right limit."""

from __future__ import annotations

import io
import json
import sys
from functools import partial
from itertools import count

import pytest
from engines import load_engine
from rich.console import Console
from typer.testing import CliRunner

from model.cost import ForwardCost
from server.cli import app
from server.config import EngineConfig
from server.errors import ConfigurationError
from server.tools.bench.bench import EngineContender, Figure, Task, measure_all, tasks_of
from server.tools.bench.bench_config import BenchConfig
from server.tools.bench.bench_http import HttpContender, common_rate
from server.tools.bench.bench_memory import Bandwidth
from server.tools.bench.bench_server import BenchServer
from server.tools.bench.bench_service import (
    ServiceBench,
    ServiceFigures,
    ServiceSizes,
    gap_ratios,
)
from server.tools.bench.bench_table import show_service, show_table
from server.tools.bench.peer.bench_peer import PeerContender
from server.tools.loadtest.stream_client import StreamRecord

COST = ForwardCost(
    layer_parameters=0,
    output_parameters=0,
    weights_bytes=1000,
    cache_bytes_per_token=10,
    attention_width=1,
    windows=(None,),
)


class Recorder:
    """A contender that is ever faster, and remembers what it was asked."""

    def __init__(self, name, calls):
        self.name = name
        self.cost = None
        self._calls = calls
        self._rates = count(10.0, 10.0)

    def measure(self, task):
        self._calls.append((self.name, task))
        return next(self._rates)


def test_rounds_go_through_everyone_in_turn():
    """Each round measures every task with every contender; the first round does not count."""
    calls = []
    tasks = tasks_of(prompts=[8], batches=[(2, 4)])
    contenders = [Recorder("one", calls), Recorder("two", calls)]
    pairs = [(task, contender) for task in tasks for contender in contenders]
    turns = []
    figures = measure_all(pairs, repeat=2, before_turn=lambda: turns.append(len(calls)))
    assert calls == [(name, task) for task in tasks for name in ("one", "two")] * 3
    assert turns == [0, 2, 4, 6, 8, 10]
    assert [figure.samples for figure in figures] == [[30.0, 50.0]] * 2 + [[40.0, 60.0]] * 2
    assert (figures[0].median, figures[0].spread) == (40.0, 0.5)


def test_share_of_the_memory():
    """A step reads the weights once, and keys and values of every request, halfway through."""
    task = Task(kind="decode", batch=4, context=90)
    # 4 requests x (100 tokens read and one written) x 10 bytes beside 1000 bytes of weights
    assert task.step_bytes(COST, steps=20) == 1000 + 4 * (100 + 1) * 10
    figure = Figure("kvserve", task, COST, samples=[8.0])
    found = figure.to_json(steps=20, bandwidth=20_160)
    assert found["memory_share"] == pytest.approx(2 * 5040 / 20_160)
    prompt = Figure("kvserve", Task(kind="prompt", context=90), COST, samples=[8.0])
    assert prompt.to_json(steps=20, bandwidth=1.0)["memory_share"] is None


def test_bandwidth_is_bytes_over_the_fastest_seconds():
    """The fastest of all tries is a reading, and the best reading is the limit."""
    times = iter([0.0, 4.0, 10.0, 12.0, 20.0, 23.0, 30.0, 38.0, 40.0, 41.0, 50.0, 53.0])
    found = Bandwidth(threads=2, num_bytes=1 << 20, clock=lambda: next(times))
    found.read(repeats=2)
    found.read(repeats=1)
    assert found.readings == [(1 << 20) / 2.0, (1 << 20) / 1.0]
    assert found.best == 1 << 20


def test_the_engine_is_timed_step_by_step(checkpoint):
    """Prompts count the tokens read; decoding counts a token a request a step, and ends clean."""
    loaded = load_engine(checkpoint("rand-llama-tied"), max_model_len=128)
    ticks = count(0.0, 2.0)  # each reading of the clock is two seconds after the last
    contender = EngineContender(loaded, steps=5, clock=lambda: next(ticks))
    assert contender.measure(Task(kind="prompt", context=64)) == 32.0
    steps = []
    step = loaded.engine.step

    def watched():
        running = [len(request.token_ids) for request in loaded.engine.scheduler.requests]
        steps.append(running)
        return step()

    loaded.engine.step = watched
    assert contender.measure(Task(kind="decode", batch=3, context=40)) == 3 * 5 / 2.0
    assert steps[-5:] == [[41 + i] * 3 for i in range(5)]
    assert not loaded.engine.has_work
    assert loaded.engine.scheduler.manager.usage == 0


def test_streams_count_while_all_receive():
    """Only the time between the last stream's first token and the first stream's end counts."""
    one = StreamRecord(intended=0.0, arrivals=[0.0, 1.0, 2.0, 3.0], completion_tokens=4)
    two = StreamRecord(intended=0.0, arrivals=[1.0, 2.0, 3.0, 4.0], completion_tokens=8)
    assert common_rate([one, two]) == (2 + 2 * 2) / 2.0
    late = StreamRecord(intended=0.0, arrivals=[5.0, 6.0], completion_tokens=2)
    with pytest.raises(ConfigurationError, match="did not overlap"):
        common_rate([one, late])


def test_a_peer_answers_line_by_line(tmp_path):
    """The other engine is started once, told each task, and ended; its failure is named."""
    script = tmp_path / "peer.py"
    script.write_text(
        "import json, sys\n"
        "print(json.dumps({'version': ' '.join(sys.argv[1:])}), flush=True)\n"
        "for line in sys.stdin:\n"
        "    task = json.loads(line)\n"
        "    if task['kind'] == 'prompt': sys.exit(3)\n"
        "    rate = task['batch'] * task['steps'] / 4\n"
        "    print(json.dumps({'tokens_per_second': rate}), flush=True)\n"
    )
    model = tmp_path / "m.gguf"
    peer = PeerContender(sys.executable, model, threads=2, steps=10, script=script)
    with peer:
        assert peer.version == f"{model} 2"
        assert peer.measure(Task(kind="decode", batch=2, context=7)) == 5.0
        with pytest.raises(ConfigurationError, match=r"llama.cpp m ended with code 3"):
            peer.measure(Task(kind="prompt", context=7))
    with pytest.raises(ConfigurationError, match="peer-python"):
        PeerContender(tmp_path / "no", model, threads=1, steps=1).__enter__()


def test_the_command_prints_and_writes_figures(checkpoint, tmp_path, monkeypatch):
    """The table and the JSON have a figure for each task, and all that it depends on."""
    smaller = partial(Bandwidth, num_bytes=1 << 20)
    monkeypatch.setattr("server.tools.bench.bench_memory.Bandwidth", smaller)
    file = tmp_path / "found.json"
    arguments = ["--model", str(checkpoint("rand-llama-tied")), "--threads", "1", "--json", file]
    sizes = ["--batch", "1,3", "--prompt", "20", "--context", "8", "--steps", "4", "--repeat", "2"]
    result = CliRunner().invoke(app, ["bench", *map(str, arguments), *sizes])
    assert result.exit_code == 0, result.output
    assert "prompt of 20" in result.output
    found = json.loads(file.read_text())
    figures = [(f["kind"], f["batch"], f["context"]) for f in found["figures"]]
    assert figures == [("prompt", 1, 20), ("decode", 1, 8), ("decode", 3, 8)]
    assert all(len(f["samples"]) == 2 for f in found["figures"])
    assert {"processor", "kernels", "num_threads", "bandwidth", "model"} <= found.keys()
    assert len(found["bandwidth_readings"]) == 3 * 3
    assert found["bandwidth"] == max(found["bandwidth_readings"])


def test_a_context_can_be_given_for_each_batch():
    """8x40 is eight requests at a context of 40, and a number alone has the usual one."""
    config = BenchConfig(batch="1, 8x40,2x7", context=9)
    assert config.batches == [(1, 9), (8, 40), (2, 7)]


def test_gaps_beside_a_prompt_are_held_against_those_before():
    """The gap that the prompt begins in counts as one beside it, and what comes after does not."""
    one = StreamRecord(intended=0.0, arrivals=[0.0, 1.0, 2.0, 3.0, 7.0, 10.0, 90.0, 95.0])
    two = StreamRecord(intended=0.0, arrivals=[0.5, 1.5, 2.5, 7.5, 9.5])
    assert gap_ratios([one, two], began=3.5, ended=8.0) == (5.0, 5.0)
    many = StreamRecord(intended=0.0, arrivals=[0.0, 2.0, *range(4, 804, 4), 900.0])
    percentile, longest = gap_ratios([many], began=2.0, ended=899.0)
    assert (percentile, longest) == (2.0, 50.0)
    together = StreamRecord(arrivals=[1.0, 1.0, 1.0, 1.0, 1.0001])
    assert max(gap_ratios([together], began=1.0, ended=2.0)) < 11


def test_figures_of_files_have_a_table_of_their_own():
    """A file that both engines decoded has a line for each, beside the table of the main model."""
    figures = [
        Figure("kvserve", Task(kind="decode", context=9), COST, [30.0]),
        Figure("llama.cpp A", Task(kind="decode", context=9), None, [20.0]),
        Figure("llama.cpp B", Task(kind="decode", context=9), None, [10.0]),
        Figure("kvserve B", Task(kind="decode", context=9), COST, [25.0]),
    ]
    rows = [figure.to_json(steps=2, bandwidth=1e5) for figure in figures]
    console = Console(width=80, record=True, file=io.StringIO())
    facts = {"model": "m", "num_threads": 2, "device": "cpu", "processor": "p", "kernels": "k"}
    readings = {"bits_per_weight": 4.5, "bandwidth_readings": [1e10, 2e9]}
    show_table(console, rows, facts={**facts, **readings})
    text = console.export_text()
    main, files = text.split("Memory was read")
    assert "1.50x" in main
    assert "3.00x" in main
    assert "kvserve B" not in main
    assert "2.50x" in files
    assert "at 10.0 GB/s at best, 2.0 at worst, in 2 turns" in text


def test_a_figure_above_its_limit_is_marked():
    """What no reading of the memory allows has a mark, which the last line explains."""
    task = Task(kind="decode", context=9)
    facts = {"model": "m", "num_threads": 2, "device": "cpu", "processor": "p", "kernels": "k"}
    facts |= {"bits_per_weight": 4.5, "bandwidth_readings": [1e5]}
    texts = []
    for rate in (50.0, 200.0):
        row = Figure("kvserve", task, COST, [rate]).to_json(steps=2, bandwidth=1e5)
        console = Console(width=80, record=True, file=io.StringIO())
        show_table(console, [row], facts=facts)
        texts.append(" ".join(console.export_text().split()))
    below, above = texts
    assert " 56 %" in below
    assert "!" not in below
    assert "! 222 %" in above
    assert "! is above the limit" in above


def test_the_service_is_printed():
    """Each row says what it is of, and what a system does not tell is a question mark."""
    found = ServiceFigures(
        seconds_to_first_token=1.5, idle_share=None, prefix_share=0.021, gap_ratio=4.25,
        longest_gap_ratio=7.0, sizes=ServiceSizes(),
    )  # fmt: skip
    console = Console(width=120, record=True, file=io.StringIO())
    show_service(console, found.to_json())
    text = console.export_text()
    for words in ("1.50 s", "?", "2.1 %", "8 streams beside a prompt of 4,096", "4.2 x", "7.0 x"):
        assert words in text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--batch", "1,x"], "--batch: must be whole numbers"),
        (["--batch", "8x0"], "--batch: must be whole numbers"),
        (["--prompt", "8x2"], "--prompt: must be whole numbers"),
        (["--same-file"], "need --peer-python"),
        (["--batch", "", "--prompt", ""], "nothing to measure"),
    ],
)
def test_useless_options_are_refused(options, message):
    """A malformed list, or nothing to measure, is an error that names the option."""
    result = CliRunner().invoke(app, ["bench", *options])
    assert message in str(result.exception)


@pytest.mark.slow
def test_a_server_is_started_and_measured(checkpoint):
    """With --http the same model is served in a process of its own and measured by its clients."""
    config = EngineConfig(model=str(checkpoint("rand-llama-tied")), threads=1, max_model_len=500)
    sizes = ServiceSizes(streams=2, stream_words=4, usual_tokens=8, stream_tokens=400,
                         long_words=30, prefix_words=20, end_words=2)  # fmt: skip
    with BenchServer(config) as server:
        contender = HttpContender(server, steps=400, cost=COST)  # a model this small is fast
        assert contender.measure(Task(kind="decode", batch=2, context=8)) > 0
        assert contender.measure(Task(kind="prompt", context=8)) > 0
        found = ServiceBench(server, sizes).measure(repeat=1)
        assert server.seconds_to_first_token == found.seconds_to_first_token > 0
        assert found.prefix_share > 0
        assert found.longest_gap_ratio >= found.gap_ratio > 0
        assert found.idle_share is None or found.idle_share >= 0
        process = server._process
    assert process.poll() is not None
