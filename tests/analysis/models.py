"""Made-up models and rows, small and exact."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from analysis.features import Caches, Model, Node, Serving
from analysis.observations import Observation
from probes.events import FileCached
from tests.analysis.synthetic import Story, at

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "num_hidden_layers": 2,
    "hidden_size": 8,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "intermediate_size": 16,
    "vocab_size": 32,
    "torch_dtype": "bfloat16",
}
NODE = Node("box", "Some CPU", 8, "Some GPU")

LOADER = "/vllm/model_executor/model_loader"
CONFIG = "/v/vllm/engine/arg_utils.py:EngineArgs.create_engine_config"
WEIGHTS = f"/v{LOADER}/default_loader.py:DefaultModelLoader.load_weights"
MAIN = "/v/bin/vllm:<module>"


def safetensors(header: Mapping[str, Any] | bytes, data_bytes: int = 0) -> bytes:
    """A safetensors file; its header may lie about the data."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + bytes(data_bytes)


def tensor(dtype: str, shape: list[int], begin: int, end: int) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def make_model(folder: Path, config: Mapping[str, Any] | None = None, **files: bytes | str) -> Path:
    """A model's directory; a file's name is written with __ for its dots."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(LLAMA if config is None else config))
    for name, content in files.items():
        data = content.encode() if isinstance(content, str) else content
        (folder / name.replace("__", ".")).write_bytes(data)
    return folder


def whole_model(folder: Path) -> Path:
    """A model with weights of 96 bytes and a tokenizer of 2000."""
    header = {"w": tensor("BF16", [6, 8], 0, 96)}
    return make_model(
        folder, model__safetensors=safetensors(header, 96), tokenizer__json="x" * 2000
    )


def row(
    name: str = "m",
    layers: int = 10,
    gb: float = 1.0,
    total_s: float = 10.0,
    seconds: Mapping[str, float] | None = None,
    family: str = "llama",
    caches: Caches | None = None,
    node: Node = NODE,
) -> Observation:
    """One start, made up."""
    model = Model(
        name,
        family,
        layers=layers,
        parameters=round(gb * 5e8),
        active_parameters=round(gb * 5e8),
        weight_bytes=round(gb * 1e9),
        tokenizer_bytes=1_000_000,
        graph_kb=100.0,
    )
    return Observation(
        model,
        Serving(capture_sizes=(1, 2)),
        caches or Caches(),
        node,
        seconds or {},
        total_s,
        {},
        "made up",
    )


def with_model(observation: Observation, **changes: Any) -> Observation:
    return replace(observation, model=replace(observation.model, **changes))


def traced_start(
    folder: Path,
    model: Path,
    weights_ms: int = 500,
    outcome: str = "ready",
    held_bytes: int | None = None,
    **meta: object,
) -> Path:
    """The trace of a start: 100 ms of configuration, then weights, sampled every 10 ms.

    `held_bytes` of the weights' 96 were in the page cache, None: nobody looked.
    """
    command = ("/v/bin/vllm", "serve", str(model), "--enforce-eager")
    story = Story(command)
    for ms in range(0, 100, 10):
        story.sample(ms, f"{MAIN} {CONFIG}")
    for ms in range(100, 100 + weights_ms, 10):
        story.sample(ms, f"{MAIN} {WEIGHTS}")
    if held_bytes is not None:
        weights = str(model / "model.safetensors")
        story.events.append(FileCached(at(0), weights, 96, held_bytes, "ext4", 1, 2))
    folder.mkdir(parents=True, exist_ok=True)
    known: dict[str, object] = {"command": command, "versions": {"vllm": "0.32.0"}}
    return story.write(folder, 100 + weights_ms, outcome, **(known | meta))
