"""Exported models in onnxruntime and OpenVINO against ours: prompt, steps and padded batches."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from checkpoints import RANDOM_CONFIGS, rewrite_tensors
from onnx_runs import RUNTIMES, ExportedDecoder
from paged import PagedCache

from model.errors import ExportError
from model.formats.loader import load_model
from model.onnx_export import exporter
from model.onnx_export.exporter import check_exportable, export_decoder

TOLERANCE = 1e-3
PROMPT, STEPS = 40, 6


def text(length: int) -> list[int]:
    generator = torch.Generator().manual_seed(length)
    return torch.randint(0, 256, (length,), generator=generator).tolist()


@pytest.fixture(scope="module")
def exported(checkpoint, tmp_path_factory):
    """A function from a checkpoint's name to its folder and our model of it."""

    @cache
    def make(name: str):
        folder = tmp_path_factory.mktemp("exported") / name
        export_decoder(checkpoint(name), folder)
        return folder, load_model(checkpoint(name), dtype="float32").model

    return make


def decoder(exported, name: str, runtime: str, *, batch: int = 1) -> ExportedDecoder:
    folder, model = exported(name)
    config = model.config
    shape = config.num_layers, config.num_kv_heads, config.head_dim
    return ExportedDecoder(RUNTIMES[runtime](folder), shape, batch=batch)


@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize("name", RANDOM_CONFIGS)
def test_prompt_and_steps_have_our_log_probabilities(exported, name: str, runtime: str):
    """At every position of a prompt, of a second chunk and of single steps, within 1e-3.

    The prompt is longer than the windows of the models that have some.
    """
    theirs = decoder(exported, name, runtime)
    model = exported(name)[1]
    ours = PagedCache.for_model(model)
    ids = text(PROMPT + STEPS)
    for start, stop in ((0, 30), (30, PROMPT), *((i, i + 1) for i in range(PROMPT, len(ids)))):
        wanted = ours.step(model, {"text": ids[start:stop]})["text"].numpy()
        found = theirs.step([ids[start:stop]])[0]
        assert np.abs(found - wanted).max() < TOLERANCE
    assert theirs.past_length == len(ids)


@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize("name", ["rand-mistral", "rand-gpt2"])
def test_a_padded_batch_has_each_texts_own_log_probabilities(exported, name: str, runtime: str):
    """Texts of different lengths, padded at the front, answer as each does alone."""
    theirs = decoder(exported, name, runtime, batch=2)
    model = exported(name)[1]
    ours = PagedCache.for_model(model)
    long, short = text(33), text(20)
    padding = len(long) - len(short)
    wanted = ours.step(model, {"long": long, "short": short})
    found = theirs.step([long, [0] * padding + short], mask=[[1] * 33, [0] * padding + [1] * 20])
    assert np.abs(found[0] - wanted["long"].numpy()).max() < TOLERANCE
    assert np.abs(found[1, padding:] - wanted["short"].numpy()).max() < TOLERANCE
    for token in (65, 66):
        wanted = ours.step(model, {"long": [token], "short": [token]})
        found = theirs.step([[token], [token]])
        for row, request in enumerate(("long", "short")):
            assert np.abs(found[row] - wanted[request].numpy()).max() < TOLERANCE


@pytest.mark.smollm2
@pytest.mark.slow
def test_the_default_model_answers_in_both_runtimes(smollm2_gguf: Path, tmp_path: Path):
    """SmolLM2 from GGUF has our log-probabilities at every position of a prompt and of steps."""
    folder = tmp_path / "smollm2"
    export_decoder(smollm2_gguf, folder)
    loaded = load_model(smollm2_gguf, dtype="float32")
    config = loaded.config
    ids = loaded.tokenizer.encode("The capital of France is Paris. The capital of Italy is Rome.")
    ours = PagedCache.for_model(loaded.model)
    wanted = ours.step(loaded.model, {"text": ids})["text"].numpy()
    shape = config.num_layers, config.num_kv_heads, config.head_dim
    for run in RUNTIMES.values():
        theirs = ExportedDecoder(run(folder), shape)
        found = [theirs.step([ids[:10]])[0], *(theirs.step([[token]])[0] for token in ids[10:])]
        assert np.abs(np.concatenate(found) - wanted).max() < TOLERANCE


def test_names_and_axes_are_optimums(exported):
    """Inputs and outputs are named as optimum's, their lengths dynamic and the rest fixed."""
    folder, model = exported("rand-qwen3")
    graph = onnx.load(folder / "model.onnx", load_external_data=False).graph

    def described(values) -> dict[str, list[str | int]]:
        return {
            value.name: [
                axis.dim_param or axis.dim_value for axis in value.type.tensor_type.shape.dim
            ]
            for value in values
        }

    config = model.config
    heads, size = config.num_kv_heads, config.head_dim
    layers = [(layer, kind) for layer in range(config.num_layers) for kind in ("key", "value")]
    assert described(graph.input) == {
        "input_ids": ["batch", "new"],
        "attention_mask": ["batch", "total"],
        "position_ids": ["batch", "new"],
        **{f"past_key_values.{n}.{kind}": ["batch", heads, "past", size] for n, kind in layers},
    }
    assert described(graph.output) == {
        "logits": ["batch", "new", config.vocab_size],
        **{f"present.{n}.{kind}": ["batch", heads, "total", size] for n, kind in layers},
    }


@pytest.mark.parametrize("name", ["rand-gemma3", "rand-gpt2"])
def test_the_checker_of_onnx_finds_nothing_wrong(exported, name: str):
    """The graph is valid, shapes included, and its weights lie where it says."""
    onnx.checker.check_model(exported(name)[0] / "model.onnx", full_check=True)


def test_a_tied_matrix_is_stored_once(exported):
    """The data file of a tied model is smaller by the output matrix than an untied one's."""
    sizes = {}
    for name in ("rand-llama-tied", "rand-llama-untied"):
        folder, model = exported(name)
        sizes[name] = (folder / "model.onnx_data").stat().st_size
        config = model.config
    matrix = 4 * config.vocab_size * config.hidden_size
    difference = sizes["rand-llama-untied"] - sizes["rand-llama-tied"]
    assert abs(difference - matrix) < 2 * 4096


def test_an_existing_folder_is_left_alone(checkpoint, tmp_path: Path):
    """Nothing is overwritten, and the message names the folder."""
    (tmp_path / "kept").write_text("mine")
    with pytest.raises(ExportError, match=f"{tmp_path} exists already"):
        export_decoder(checkpoint("rand-gpt2"), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]


def test_a_failed_export_leaves_nothing_behind(checkpoint_copy, tmp_path: Path):
    """A tensor that nothing reads is named, and there is no half-written folder."""
    source = checkpoint_copy("rand-llama-tied")
    surplus = {"model.layers.1.self_attn.sinks": torch.zeros(4)}
    rewrite_tensors(source, lambda tensors: tensors | surplus)
    with pytest.raises(ExportError, match=r"model\.layers\.1\.self_attn\.sinks has no place"):
        export_decoder(source, tmp_path / "out")
    assert list(tmp_path.iterdir()) == [source]


def test_a_missing_tensor_is_named(checkpoint_copy, tmp_path: Path):
    """What the graph needs and the file lacks is said by name."""
    source = checkpoint_copy("rand-llama-tied")
    rewrite_tensors(
        source, lambda tensors: {k: t for k, t in tensors.items() if "1.mlp.up" not in k}
    )
    with pytest.raises(ExportError, match=r"no tensor model\.layers\.1\.mlp\.up_proj\.weight"):
        export_decoder(source, tmp_path / "out")


@pytest.mark.parametrize(
    "changes",
    [{"attention_cap": 5.0}, {"norm_placement": "post"}, {"qk_norm": "row"}, {"logit_scale": 2.0}],
)
def test_what_the_graph_does_not_follow_is_refused(exported, changes: dict[str, object]):
    """A field it does not know may have its default alone, others the values it knows."""
    config = exported("rand-gpt2")[1].config
    check_exportable(config)
    (name,) = changes
    with pytest.raises(ExportError, match=f"gpt2 model has {name} = .*, which the ONNX export"):
        check_exportable(replace(config, **changes))


def test_heads_turned_in_part_are_refused(exported):
    """The graph turns whole heads."""
    config = exported("rand-llama-tied")[1].config
    rotaries = tuple(replace(rotary, dimensions=8) for rotary in config.rotaries)
    with pytest.raises(ExportError, match="turns only some dimensions of each head"):
        check_exportable(replace(config, rotaries=rotaries))


def test_every_known_field_is_a_field(exported):
    """The list of what the graph follows names nothing that is gone."""
    assert set(exported("rand-gpt2")[1].config.__dataclass_fields__) >= exporter.KNOWN_FIELDS


def test_an_unknown_activation_is_refused(exported):
    """The message names it and those that are known."""
    config = replace(exported("rand-gpt2")[1].config, activation="relu2")
    with pytest.raises(ExportError, match="activation is 'relu2'; the ONNX export supports silu"):
        check_exportable(config)
