"""lm-eval's local-completions on a task of our own, judged by the log-probabilities themselves."""

from __future__ import annotations

import json
from pathlib import Path

import httpx
import pytest

lm_eval = pytest.importorskip("lm_eval")

pytestmark = pytest.mark.clients
CITIES = ["Paris", "Rome", "Madrid", "Berlin"]
COUNTRIES = ["France", "Italy", "Spain", "Germany"]
CHOICE_TASK = """
task: capitals
dataset_path: json
dataset_kwargs: {data_files: {test: DATA}}
test_split: test
output_type: multiple_choice
doc_to_text: "The capital of {{country}} is"
doc_to_choice: "{{cities}}"
doc_to_target: answer
metric_list: [{metric: acc}]
"""
TEXT_TASK = """
task: continued
dataset_path: json
dataset_kwargs: {data_files: {test: DATA}}
test_split: test
output_type: generate_until
doc_to_text: "The capital of {{country}} is the city of"
doc_to_target: "{{cities[answer]}}"
generation_kwargs: {until: ["\\n", ".", ",", "!", "?", ";"], max_gen_toks: 8, do_sample: false}
metric_list: [{metric: exact_match}]
"""


@pytest.fixture(scope="module")
def tasks(tmp_path_factory) -> Path:
    """A folder with both tasks and their data."""
    folder = tmp_path_factory.mktemp("tasks")
    data = folder / "data.jsonl"
    data.write_text(
        "".join(
            json.dumps({"country": country, "cities": CITIES, "answer": answer}) + "\n"
            for answer, country in enumerate(COUNTRIES)
        )
    )
    for name, task in (("capitals", CHOICE_TASK), ("continued", TEXT_TASK)):
        (folder / f"{name}.yaml").write_text(task.replace("DATA", str(data)))
    return folder


@pytest.fixture(scope="module")
def evaluated(server, tasks):
    """What lm-eval says about both tasks."""
    return lm_eval.simple_evaluate(
        model="local-completions",
        model_args={
            "model": "smollm2",
            "base_url": f"{server.url}/v1/completions",
            "tokenizer_backend": "remote",
            "max_length": 512,
            "max_retries": 1,
        },
        tasks=["capitals", "continued"],
        task_manager=lm_eval.tasks.TaskManager(include_path=str(tasks), include_defaults=False),
        bootstrap_iters=0,
    )


def direct_score(server, context: str, continuation: str) -> float:
    """The log-probability of a continuation, from the tokens that follow those of the context."""
    with httpx.Client(base_url=server.url, timeout=120) as client:
        whole = context + continuation
        count = client.post("/tokenize", json={"prompt": context}).json()["count"]
        body = {"prompt": whole, "max_tokens": 0, "echo": True, "logprobs": 0}
        scored = client.post("/v1/completions", json=body).json()["choices"][0]["logprobs"]
    return sum(scored["token_logprobs"][count:])


def test_scores_are_those_of_the_log_probabilities(server, evaluated):
    """Each choice has the sum of its tokens' log-probabilities, and accuracy follows from them."""
    num_right = 0
    for sample in evaluated["samples"]["capitals"]:
        context = f"The capital of {sample['doc']['country']} is"
        direct = [direct_score(server, context, f" {city}") for city in CITIES]
        said = [score for ((score, _greedy),) in sample["resps"]]
        assert said == pytest.approx(direct, abs=1e-3)
        num_right += direct.index(max(direct)) == sample["doc"]["answer"]
    assert evaluated["results"]["capitals"]["acc,none"] == num_right / len(COUNTRIES)
    assert num_right >= 3


def test_generated_text_is_what_the_server_says(server, evaluated):
    """Texts end before the first of six stop strings, and are those of a direct greedy request."""
    for sample in evaluated["samples"]["continued"]:
        body = {
            "prompt": f"The capital of {sample['doc']['country']} is the city of",
            "max_tokens": 8, "temperature": 0, "stop": ["\n", ".", ",", "!", "?", ";"],
        }  # fmt: skip
        answer = httpx.post(f"{server.url}/v1/completions", json=body, timeout=120).json()
        assert sample["resps"] == [[answer["choices"][0]["text"]]]
