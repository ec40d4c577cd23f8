"""A path becomes a model that agrees with transformers, or one sentence says why it does not."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import (
    BOS,
    END,
    EOT,
    NAMES,
    Tensors,
    edit_json,
    reference,
    reference_logprobs,
    rewrite_tensors,
)
from torch import Tensor

from model.device import DeviceChoice
from model.errors import CheckpointError, ModelError
from model.formats.loader import LoadedModel, load_model
from model.native_library import NativeKernels, NativeUnavailableError

Copy = Callable[[str], Path]


def _logprobs(loaded: LoadedModel, ids: list[int]) -> Tensor:
    with torch.inference_mode():
        return loaded.model(torch.tensor(ids), torch.arange(len(ids))).log_softmax(-1)


@pytest.mark.parametrize("name", NAMES)
def test_every_checkpoint(checkpoint: Callable[[str], Path], name: str) -> None:
    """Every log-probability of every checkpoint is within 1e-3 of transformers."""
    folder = checkpoint(name)
    loaded = load_model(folder, device="cpu")
    length = min(200, loaded.config.max_position_embeddings)
    ids = torch.randint(256, (length,), generator=torch.Generator().manual_seed(3)).tolist()
    expected = reference_logprobs(reference(folder), ids)
    assert (_logprobs(loaded, ids) - expected).abs().max() < 1e-3
    assert loaded.name == name
    assert loaded.path == folder
    assert loaded.num_bytes == sum(parameter.nbytes for parameter in loaded.model.parameters())


def test_stray_output_matrix(checkpoint_copy: Copy, checkpoint: Callable[[str], Path]) -> None:
    """A tied model whose file holds an output matrix too uses its embeddings all the same."""
    folder = checkpoint_copy("rand-llama-tied")
    stray = {"lm_head.weight": torch.ones(264, 64)}
    rewrite_tensors(folder, lambda tensors: tensors | stray)
    ids = list(range(50))
    expected = reference_logprobs(reference(checkpoint("rand-llama-tied")), ids)
    assert (_logprobs(load_model(folder), ids) - expected).abs().max() < 1e-3


def test_missing_output_matrix(checkpoint_copy: Copy) -> None:
    """An untied model without output matrix is refused by that name."""
    folder = checkpoint_copy("rand-llama-untied")
    rewrite_tensors(
        folder, lambda tensors: {k: v for k, v in tensors.items() if k != "lm_head.weight"}
    )
    with pytest.raises(CheckpointError, match=r"configuration: missing lm_head\.weight\."):
        load_model(folder)


def test_all_that_does_not_fit(checkpoint_copy: Copy) -> None:
    """Missing, surplus and misshapen tensors are named together, with both shapes."""
    folder = checkpoint_copy("rand-llama-untied")

    def edit(tensors: Tensors) -> Tensors:
        del tensors["model.norm.weight"]
        surplus = {f"extra.{i}.weight": torch.ones(2) for i in range(7)}
        return tensors | surplus | {"lm_head.weight": torch.ones(264, 65)}

    rewrite_tensors(folder, edit)
    with pytest.raises(CheckpointError) as caught:
        load_model(folder)
    assert str(caught.value) == (
        "The tensors do not fit the configuration: missing model.norm.weight; surplus "
        "extra.0.weight, extra.1.weight, extra.2.weight, extra.3.weight, extra.4.weight "
        "and 2 more; misshapen lm_head.weight (264, 65) instead of (264, 64)."
    )


def test_absurd_configuration(checkpoint_copy: Copy) -> None:
    """Sizes that no file could fill are refused before memory is asked for."""
    folder = checkpoint_copy("rand-llama-untied")
    for change in ({"num_hidden_layers": 300}, {"hidden_size": 2**30}, {"vocab_size": 2**31 - 1}):
        edit_json(
            folder / "config.json",
            **{"num_hidden_layers": 3, "hidden_size": 64, "head_dim": 16} | change,
        )
        with pytest.raises(ModelError):
            load_model(folder)


@pytest.mark.parametrize(
    ("stored", "dtype", "expected"),
    [
        (torch.float32, "auto", torch.float32),
        (torch.bfloat16, "auto", torch.bfloat16),
        (torch.float16, "auto", torch.bfloat16),
        (torch.float16, "float32", torch.float32),
        (torch.float32, "bfloat16", torch.bfloat16),
    ],
)
@pytest.mark.parametrize("name", ["rand-qwen2", "rand-gpt2"])
def test_dtype(
    checkpoint_copy: Copy, name: str, stored: torch.dtype, dtype: Any, expected: Any
) -> None:
    """Matrices are float32 if the file is or if asked, else bfloat16; vectors are float32."""
    folder = checkpoint_copy(name)
    rewrite_tensors(
        folder, lambda tensors: {name: tensor.to(stored) for name, tensor in tensors.items()}
    )
    edit_json(folder / "config.json", dtype=str(stored).removeprefix("torch."))
    loaded = load_model(folder, dtype=dtype, device="cpu")
    for parameter in loaded.model.parameters():
        assert parameter.dtype == (expected if parameter.dim() == 2 else torch.float32)
        assert parameter.isfinite().all()
        assert not parameter.requires_grad


def test_float32_without_saying_so(checkpoint_copy: Copy) -> None:
    """A file whose matrices are float32 is float32, though its configuration is silent."""
    folder = checkpoint_copy("rand-llama-tied")
    content = json.loads((folder / "config.json").read_text())
    content.pop("dtype")
    (folder / "config.json").write_text(json.dumps(content))
    assert {p.dtype for p in load_model(folder).model.parameters()} == {torch.float32}


def test_end_ids_of_all_files(checkpoint_copy: Copy) -> None:
    """The tokenizer's end of text joins the ids of the configuration files."""
    folder = checkpoint_copy("script-gpt2")
    edit_json(folder / "config.json", eos_token_id=EOT)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": BOS}))
    assert load_model(folder).eos_token_ids == {END, EOT, BOS}


def test_progress(checkpoint: Callable[[str], Path]) -> None:
    """Progress grows tensor by tensor up to the bytes of all weights."""
    told: list[tuple[int, int]] = []
    loaded = load_model(
        checkpoint("rand-llama-tied"), progress=lambda done, total: told.append((done, total))
    )
    assert [total for _, total in told] == [loaded.num_bytes] * len(told)
    assert [done for done, _ in told] == sorted({done for done, _ in told})
    assert told[-1] == (loaded.num_bytes, loaded.num_bytes)


def test_name_of_a_hub_model(checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    """A model in the hub's cache goes by its name on the hub."""
    folder = tmp_path / "models--org--tiny" / "snapshots" / "0123abc"
    shutil.copytree(checkpoint("rand-llama-tied"), folder)
    assert load_model(folder).name == "org/tiny"


def test_no_such_path(tmp_path: Path) -> None:
    """A path that leads nowhere is named with what was expected."""
    with pytest.raises(CheckpointError, match="nowhere does not exist; expected a GGUF file or"):
        load_model(tmp_path / "nowhere")


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
def test_no_such_device(checkpoint: Callable[[str], Path]) -> None:
    """CUDA asked for where there is none is refused."""
    with pytest.raises(CheckpointError, match="cannot be used: torch sees no CUDA device"):
        load_model(checkpoint("rand-llama-tied"), device="cuda")


def test_a_model_the_kernels_cannot_run_is_left_to_torch(
    checkpoint: Callable[[str], Path],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """One line of the log names the feature, and to quantise such a model is refused."""
    try:
        kernels = NativeKernels("portable", threads=1)
    except NativeUnavailableError as error:
        pytest.skip(str(error))
    monkeypatch.setattr(
        "model.formats.loader.unsupported_feature", lambda _config: "a strange layer"
    )
    assert load_model(checkpoint("rand-llama-tied"), kernels=kernels).native is None
    assert [record.message for record in caplog.records if record.levelname == "WARNING"] == [
        "torch runs this model: the native kernels lack a strange layer"
    ]
    with pytest.raises(CheckpointError, match="native kernels"):
        load_model(checkpoint("rand-llama-tied"), kernels=kernels, quantize="int8")


def test_a_device_without_bfloat16_gets_float32(
    checkpoint_copy: Copy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights are widened for it, and who asks for bfloat16 by name is told."""
    folder = checkpoint_copy("rand-llama-tied")
    old = DeviceChoice(torch.device("cpu"), "an old card", has_bfloat16=False)
    monkeypatch.setattr("model.formats.loader.choose_device", lambda *_args, **_options: old)
    rewrite_tensors(
        folder, lambda tensors: {name: tensor.bfloat16() for name, tensor in tensors.items()}
    )
    edit_json(folder / "config.json", dtype="bfloat16")
    loaded = load_model(folder)
    assert loaded.dtype == torch.float32
    assert {p.dtype for p in loaded.model.parameters()} == {torch.float32}
    with pytest.raises(CheckpointError, match="bfloat16, which an old card, does not multiply"):
        load_model(folder, dtype="bfloat16")
