"""kvserve export: the model as ONNX, its cache as inputs and outputs, for other runtimes."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from server.errors import ConfigurationError
from server.tools.command_line import spinner


def export(
    *,
    onnx: Annotated[Path, typer.Option(help="The folder to write; it must not exist yet.")],
    model: Annotated[
        str | None,
        typer.Option(
            envvar="KVSERVE_MODEL",
            help="A GGUF file, a folder in Hugging Face layout or a hub name.",
            show_default="SmolLM2-135M-Instruct",
        ),
    ] = None,
) -> None:
    """Write the model as ONNX, with its tokenizer and its chat template beside it.

    The decoder takes the cache as inputs and returns it as outputs, under the names that
    Hugging Face's optimum uses, for texts of any length. Weights are float32. What the graph
    cannot say, such as a mixture of experts, is refused by name.
    """
    if find_spec("onnx") is None:
        raise ConfigurationError("kvserve export needs onnx: pip install 'kvserve[export]'")
    from model.formats.hub import resolve_model  # noqa: PLC0415 - torch takes seconds to import
    from model.onnx_export.exporter import export_decoder  # noqa: PLC0415 - an optional extra

    with spinner() as bar:
        bar.add_task("writing the decoder", total=None)
        export_decoder(resolve_model(model), onnx)
    console = Console(highlight=False, soft_wrap=True)
    for path in sorted(path for path in onnx.rglob("*") if path.is_file()):
        console.print(f"{path}  {path.stat().st_size:,} bytes")
