"""What a start's duration depends on: model, serving arguments, caches, node.

A model is read from its directory without loading weights: config.json, the
headers of safetensors files and the sizes of others. All of them may be
anyone's, so every length is checked against the file before it is believed.
"""

from __future__ import annotations

import errno
import json
import math
import os
import re
import stat
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from tracer.errors import ColdtraceError

MAX_JSON_BYTES = 64 << 20
MAX_HEADER_BYTES = 100_000_000  # the limit of the safetensors library itself
MAX_TENSORS = 4_000_000
MAX_DIMENSIONS = 64
ATTENTION_MATRICES = 4  # query, key, value, output
GRAPH_KB_PER_MATRIX = 4.7
"""Size of the traced graph a weight matrix of a layer: the mean of the published models."""
DTYPE_BYTES = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}

HIT, MISS, DISABLED, OFF = "hit", "miss", "disabled", "off"


@dataclass(frozen=True, slots=True)
class Model:
    """A model's sizes; None where they aren't known, and `notes` says so.

    `parameters` counts elements as stored; of a mixture of experts a token uses
    `active_parameters` only. `family` is the architecture, the engine's code for it.
    """

    name: str
    family: str | None
    layers: int | None = None
    hidden: int | None = None
    heads: int | None = None
    kv_heads: int | None = None
    head_size: int | None = None
    ffn: int | None = None
    vocabulary: int | None = None
    experts: int = 0
    active_experts: int = 0
    parameters: int | None = None
    active_parameters: int | None = None
    weight_bytes: int | None = None
    bytes_by_dtype: Mapping[str, int] = field(default_factory=dict)
    parameters_by_dtype: Mapping[str, int] = field(default_factory=dict)
    quantization: str | None = None
    tokenizer_bytes: int | None = None
    graph_kb: float | None = None
    notes: tuple[str, ...] = ()

    @property
    def matrices(self) -> int | None:
        """Weight matrices that the layers multiply with, an expert layer counted as one FFN."""
        if self.layers is None:
            return None
        return self.layers * (ATTENTION_MATRICES + self._ffn_matrices())

    @property
    def estimated_graph_kb(self) -> float | None:
        """Size of the traced graph: as measured, else by the layers and their kind."""
        if self.graph_kb is not None:
            return self.graph_kb
        return None if self.matrices is None else GRAPH_KB_PER_MATRIX * self.matrices

    @property
    def loaded_count(self) -> str:
        """Which parameter count decides the loading, for people."""
        if not self.experts:
            return "dense: all parameters"
        return f"mixture of {self.experts} experts: the total, not the active parameters"

    def _ffn_matrices(self) -> int:
        """Three with a gate, two without, told from what the other sizes leave over."""
        shape = (self.parameters, self.layers, self.hidden, self.heads, self.ffn, self.vocabulary)
        if self.experts or self.quantization or not all(shape):
            return 3
        parameters, layers, hidden, heads, ffn, vocabulary = map(float, shape)  # type: ignore[arg-type]
        head_size = self.head_size or hidden / heads
        attention = 2 * hidden * head_size * (heads + (self.kv_heads or heads))
        rest = (parameters - vocabulary * hidden) / layers - attention
        return 2 if rest < 2.5 * hidden * ffn else 3


@dataclass(frozen=True, slots=True)
class Serving:
    """How a model is served. `capture_sizes` are the batch sizes of CUDA graphs, None for
    the engine's own choice."""

    tp: int = 1
    pp: int = 1
    dp: int = 1
    eager: bool = False
    capture_sizes: tuple[int, ...] | None = None
    load_format: str = "auto"

    @property
    def ranks(self) -> int:
        return self.tp * self.pp


@dataclass(frozen=True, slots=True)
class Caches:
    """What earlier starts have left behind.

    page_cache: share of the weights in memory, None where nobody knows.
    compile: `hit`, `miss`, `disabled` (compiled again, but with the kernels of
    earlier starts) or `off` (nothing is compiled).
    kernels_cold: the first start ever, so that kernels are built too.
    model_info: whether the model's inspection is remembered.
    """

    page_cache: float | None = 1.0
    compile: str = HIT
    kernels_cold: bool = False
    model_info: str = MISS


@dataclass(frozen=True, slots=True)
class Node:
    """A machine; two are the same if all this is."""

    name: str
    cpu: str = ""
    cores: int = 0
    gpu: str = ""
    disk: str = ""


# A model's directory -----------------------------------------------------------


def read_model(directory: str | Path) -> Model:
    """The features of the model in `directory`; raise ColdtraceError where it is none."""
    folder = Path(directory)
    if not folder.is_dir():
        raise ColdtraceError(f"{folder} is no directory; give the folder that holds config.json")
    path = folder / "config.json"
    if not path.is_file():
        raise ColdtraceError(f"{folder} has no config.json, so it is no model's directory")
    config = _read_json(path)
    if isinstance(config.get("text_config"), dict):  # a model of several modes
        config |= config["text_config"] | {"architectures": config.get("architectures")}
    model = _shape(folder, config)
    model = _with_weights(model, folder, config)
    model = replace(model, tokenizer_bytes=_tokenizer_bytes(folder))
    missing = [
        title
        for value, title in (
            (model.layers, "number of layers"),
            (model.weight_bytes, "weight files"),
            (model.tokenizer_bytes, "tokenizer files"),
        )
        if value is None
    ]
    notes = tuple(f"{title} not found in {folder}" for title in missing)
    return replace(model, notes=model.notes + notes)


def _shape(folder: Path, config: Mapping[str, Any]) -> Model:
    def count(*names: str) -> int | None:
        for name in names:
            value = config.get(name)
            if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 1 << 40:
                return value
        return None

    family = _family(config)
    hidden = count("hidden_size", "n_embd", "d_model")
    experts = count("num_local_experts", "num_experts", "n_routed_experts") or 0
    quantization = config.get("quantization_config")
    method = quantization.get("quant_method") if isinstance(quantization, dict) else None
    heads = count("num_attention_heads", "n_head", "n_heads")
    one_kv_head = config.get("multi_query") and not config.get("new_decoder_architecture")
    return Model(
        name=folder.resolve().name,
        family=family,
        layers=count("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
        hidden=hidden,
        heads=heads,
        kv_heads=1
        if one_kv_head
        else count("num_key_value_heads", "num_kv_heads", "n_head_kv") or heads,
        head_size=count("head_dim"),
        ffn=count("intermediate_size", "ffn_dim", "ffn_hidden_size", "n_inner")
        or (4 * hidden if hidden else None),
        vocabulary=count("vocab_size"),
        experts=experts,
        active_experts=(count("num_experts_per_tok", "moe_topk") or 0) if experts else 0,
        quantization=method if isinstance(method, str) else None,
        notes=() if family else ("config.json names no architecture",),
    )


def _family(config: Mapping[str, Any]) -> str | None:
    """`LlamaForCausalLM` is llama."""
    names = config.get("architectures")
    first = names[0] if isinstance(names, list) and names else None
    if not isinstance(first, str):
        first = config.get("model_type")
    if not isinstance(first, str) or not first:
        return None
    name = re.sub(r"(For[A-Z]\w*|LMHeadModel|Model)$", "", first)
    return re.sub(r"[^a-z0-9]", "", name.lower()) or None


def _with_weights(model: Model, folder: Path, config: Mapping[str, Any]) -> Model:
    files = weight_files(folder)
    if not files:
        return model
    if files[0].suffix == ".safetensors":
        return _with_tensors(model, files)
    weight_bytes = sum(path.stat().st_size for path in files)
    dtype = str(config.get("torch_dtype") or config.get("dtype") or "float16")
    dtype = dtype.removeprefix("torch.")
    parameters = weight_bytes // DTYPE_BYTES.get(dtype, 2)
    note = f"parameters counted from the size of the {files[0].suffix} files, as {dtype}"
    return replace(
        model,
        weight_bytes=weight_bytes,
        bytes_by_dtype={dtype: weight_bytes},
        parameters_by_dtype={dtype: parameters},
        parameters=parameters,
        active_parameters=parameters,
        notes=(*model.notes, note),
    )


def weight_files(folder: Path) -> list[Path]:
    """The files that hold the weights: those an index names, or all of the first kind."""
    files = _indexed(folder, "model.safetensors.index.json")
    files = files or sorted(folder.glob("*.safetensors"))
    files = files or _indexed(folder, "pytorch_model.bin.index.json")
    for pattern in ("*.bin", "*.gguf", "*.pt", "*.pth"):
        files = files or sorted(folder.glob(pattern))
    return files


def _indexed(folder: Path, name: str) -> list[Path]:
    """The files that an index names, each once; none where there is no index."""
    index = folder / name
    if not index.is_file():
        return []
    names = _read_json(index).get("weight_map")
    if not isinstance(names, dict) or not names:
        raise ColdtraceError(f"{index} has no weight_map; download it again")
    files = []
    for shard in dict.fromkeys(names.values()):
        if not isinstance(shard, str) or Path(shard).name != shard:
            raise ColdtraceError(f"{index} names a shard outside its folder: {shard!r}")
        if not (folder / shard).is_file():
            raise ColdtraceError(f"{index} names {shard}, which is missing; download it")
        files.append(folder / shard)
    return files


def _with_tensors(model: Model, files: Iterable[Path]) -> Model:
    bytes_by: dict[str, int] = {}
    parameters_by: dict[str, int] = {}
    in_experts = 0
    for path in files:
        for name, dtype, elements, size in read_safetensors_header(path):
            bytes_by[dtype] = bytes_by.get(dtype, 0) + size
            parameters_by[dtype] = parameters_by.get(dtype, 0) + elements
            if ".experts." in name:
                in_experts += elements
    parameters = active = sum(parameters_by.values())
    if model.experts and model.active_experts:
        active -= round(in_experts * (1 - min(model.active_experts / model.experts, 1)))
    return replace(
        model,
        weight_bytes=sum(bytes_by.values()),
        bytes_by_dtype=bytes_by,
        parameters_by_dtype=parameters_by,
        parameters=parameters,
        active_parameters=active,
    )


def read_safetensors_header(path: Path) -> list[tuple[str, str, int, int]]:
    """Name, dtype, elements and bytes of each tensor of a safetensors file.

    Raises ColdtraceError where the header is cut short or claims what isn't there.
    Source: https://huggingface.co/docs/safetensors (the format's description).
    """
    try:
        with open(path, "rb", opener=_open_file) as file:
            available = os.fstat(file.fileno()).st_size - 8
            prefix = file.read(8)
            length = int.from_bytes(prefix, "little")
            if len(prefix) < 8 or length > available:
                raise ColdtraceError(
                    f"{path} is cut short: its header claims {length} bytes of "
                    f"{max(available, 0)}; download it again"
                )
            if length > MAX_HEADER_BYTES:
                raise ColdtraceError(f"{path}: a header of {length} bytes is no safetensors'")
            header = json.loads(file.read(length))
    except OSError as error:
        raise ColdtraceError(f"can't read {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise ColdtraceError(f"the header of {path} is no JSON; download it again") from error
    if not isinstance(header, dict) or len(header) > MAX_TENSORS:
        raise ColdtraceError(f"the header of {path} is no list of tensors; download it again")
    header.pop("__metadata__", None)
    return [_tensor(path, name, entry, available - length) for name, entry in header.items()]


def _tensor(path: Path, name: str, entry: Any, available: int) -> tuple[str, str, int, int]:
    try:
        begin, end = entry["data_offsets"]
        shape, dtype = entry["shape"], entry["dtype"]
        numbers = [begin, end, *shape]
        sound = len(numbers) <= MAX_DIMENSIONS and all(map(_is_count, numbers))
    except (TypeError, KeyError, ValueError):
        sound = False
    if not sound or not isinstance(dtype, str) or begin > end:
        raise ColdtraceError(
            f"the header of {path} doesn't describe its tensors; download it again"
        )
    elements = math.prod(shape)
    if end > available or elements > 8 * (end - begin):
        raise ColdtraceError(
            f"{path} is cut short: its header claims {max(end, elements)} bytes of tensors, "
            f"the file has {available}; download it again"
        )
    return name, dtype, elements, end - begin


def _is_count(value: object) -> bool:
    return isinstance(value, int) and 0 <= value < 1 << 63


def _tokenizer_bytes(folder: Path) -> int | None:
    """The first kind of tokenizer that is there, as the engine would choose."""
    for names in (
        ["tokenizer.json"],
        ["tekken.json"],
        ["tokenizer.model"],
        ["vocab.json", "merges.txt"],
        ["vocab.txt"],
    ):
        if (folder / names[0]).is_file():
            return sum((folder / name).stat().st_size for name in names if (folder / name).exists())
    tiktoken = sum(path.stat().st_size for path in folder.glob("*.tiktoken"))
    return tiktoken or None


def _open_file(path: str, flags: int) -> int:
    """Never wait for the writer of a pipe; raise OSError for all but a file."""
    handle = os.open(path, flags | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(errno.EINVAL, "it is not a file")
    return handle


def _read_json(path: Path) -> dict[str, Any]:
    try:
        with open(path, "rb", opener=_open_file) as file:
            text = file.read(MAX_JSON_BYTES + 1)
        value = json.loads(text) if len(text) <= MAX_JSON_BYTES else None
    except OSError as error:
        raise ColdtraceError(f"can't read {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise ColdtraceError(f"{path} is no JSON: {str(error)[:100]}") from error
    if not isinstance(value, dict):
        raise ColdtraceError(f"{path} holds no JSON object")
    return value


# The serving arguments ---------------------------------------------------------

_OPTIONS = {
    "--tensor-parallel-size": "tp",
    "-tp": "tp",
    "--pipeline-parallel-size": "pp",
    "-pp": "pp",
    "--data-parallel-size": "dp",
    "-dp": "dp",
}


def read_serving(command: Sequence[str]) -> Serving:
    """What the engine's command line says of how it serves."""
    words = [part for word in command for part in _split_option(word)]
    ranks = {"tp": 1, "pp": 1, "dp": 1}
    load_format = "auto"
    for word, value in pairwise([*words, ""]):
        if word in _OPTIONS and value.isdecimal() and 0 < int(value) < 1 << 20:
            ranks[_OPTIONS[word]] = int(value)
        elif word == "--load-format":
            load_format = value
    return Serving(
        **ranks,
        eager="--enforce-eager" in words,
        capture_sizes=_capture_sizes(words),
        load_format=load_format,
    )


def read_model_argument(command: Sequence[str]) -> str | None:
    """The model that a command line names: `serve MODEL` or `--model MODEL`."""
    words = [part for word in command for part in _split_option(word)]
    for word, value in pairwise(words):
        if word == "--model" or (word == "serve" and not value.startswith("-")):
            return value
    return None


def _split_option(word: str) -> list[str]:
    return word.split("=", 1) if re.match(r"--[\w-]+=", word) else [word]


def _capture_sizes(words: Sequence[str]) -> tuple[int, ...] | None:
    for name in ("--cudagraph-capture-sizes", "--cuda-graph-sizes", "--cuda-graph-size"):
        if name in words:
            sizes = []
            for word in words[words.index(name) + 1 :]:
                if not word.isdecimal():
                    break
                sizes.append(int(word))
            return sizes_up_to(sizes[0]) if len(sizes) == 1 else tuple(sizes) or None
    return None


def sizes_up_to(largest: int) -> tuple[int, ...]:
    """The batch sizes that the engine captures if told one number: 1, 2, 4, 8, 16, 24, ..."""
    return (1, 2, 4, *range(8, min(largest, 1 << 16) + 1, 8))


def first_sizes(count: int) -> tuple[int, ...]:
    """The first `count` batch sizes that the engine captures."""
    return sizes_up_to(8 * max(count - 3, 0))[:count]
