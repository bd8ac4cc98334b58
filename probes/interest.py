"""Which opened files tell something about a model server's start."""

from __future__ import annotations

import re

_MATTERS = re.compile(
    r"""
      \.(safetensors|bin|pt|pth|ckpt|gguf|npz|npy)(\.index\.json)?$   # weights
    | \.(model|tiktoken|jinja)$ | (^|/)(vocab|merges|tokenizer)[^/]*$ # tokenizer
    | \.(json|toml|ya?ml|cfg|ini|conf)$                              # configuration
    | \.so(\.[0-9]+)*$ | \.(cubin|fatbin|ptx|hsaco)$                 # code that is loaded
    | torch_?inductor | compile_cache | [./]triton | modelinfos       # compile caches
    | /\.?cache/(vllm|flashinfer|huggingface|torch) | ComputeCache
    """,
    re.VERBOSE,
)


def matters(path: str) -> bool:
    """Whether a file is a start's weights, tokenizer, configuration, loaded
    code or part of a compile cache; what else is opened is noise."""
    return _MATTERS.search(path) is not None
