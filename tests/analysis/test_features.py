"""What is read of a model's directory and of a command line, and what isn't believed."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from analysis.features import (
    Model,
    Serving,
    first_sizes,
    read_model,
    read_model_argument,
    read_serving,
    sizes_up_to,
)
from analysis.machine import page_cache_share, this_node
from tests.analysis.models import LLAMA, make_model, safetensors, tensor
from tracer.errors import ColdtraceError


def test_sizes_come_from_headers_without_the_weights(tmp_path: Path) -> None:
    header = {
        "__metadata__": {"format": "pt"},
        "a": tensor("BF16", [3, 4], 0, 24),
        "b": tensor("F32", [5], 24, 44),
    }
    folder = make_model(
        tmp_path / "m", model__safetensors=safetensors(header, 44), tokenizer__json="x" * 70
    )
    model = read_model(folder)
    assert (model.parameters, model.weight_bytes) == (17, 44)
    assert model.bytes_by_dtype == {"BF16": 24, "F32": 20}
    assert model.parameters_by_dtype == {"BF16": 12, "F32": 5}
    assert (model.name, model.family, model.layers) == ("m", "llama", 2)
    assert model.tokenizer_bytes == 70 and model.notes == ()


def test_shards_are_those_of_the_index(tmp_path: Path) -> None:
    shard = safetensors({"a": tensor("F16", [2], 0, 4)}, 4)
    index = json.dumps({"weight_map": {"a": "x-1.safetensors", "b": "x-1.safetensors"}})
    folder = make_model(
        tmp_path,
        **{"x-1__safetensors": shard, "consolidated__safetensors": shard},
        model__safetensors__index__json=index,
    )
    assert read_model(folder).weight_bytes == 4


def test_other_weights_count_by_their_size(tmp_path: Path) -> None:
    folder = make_model(
        tmp_path, **{"pytorch_model-1__bin": b"x" * 60, "pytorch_model-2__bin": b"y" * 40}
    )
    model = read_model(folder)
    assert (model.weight_bytes, model.parameters) == (100, 50)
    assert "counted from the size of the .bin files, as bfloat16" in model.notes[0]


def test_of_experts_all_are_loaded_and_some_are_used(tmp_path: Path) -> None:
    header = {
        "layers.0.experts.0.w": tensor("BF16", [400], 0, 800),
        "layers.0.router": tensor("BF16", [100], 800, 1000),
    }
    config = LLAMA | {"num_local_experts": 8, "num_experts_per_tok": 2}
    folder = make_model(tmp_path, config, model__safetensors=safetensors(header, 1000))
    model = read_model(folder)
    assert (model.parameters, model.active_parameters) == (500, 200)
    assert "the total, not the active" in model.loaded_count


def test_quantization_is_named(tmp_path: Path) -> None:
    config = LLAMA | {"quantization_config": {"quant_method": "awq"}}
    assert read_model(make_model(tmp_path, config)).quantization == "awq"


def test_a_model_of_several_modes_has_its_sizes_inside(tmp_path: Path) -> None:
    config = {"architectures": ["FooForConditionalGeneration"], "text_config": LLAMA}
    model = read_model(make_model(tmp_path, config))
    assert (model.family, model.layers) == ("foo", 2)


def test_what_is_unknown_is_said(tmp_path: Path) -> None:
    model = read_model(make_model(tmp_path, {"a": 1}))
    assert (model.layers, model.weight_bytes, model.matrices) == (None, None, None)
    notes = " ".join(model.notes)
    assert "no architecture" in notes and "number of layers" in notes and "weight files" in notes


@pytest.mark.parametrize(("ffn_matrices", "expected"), [(2, 6 * 4), (3, 7 * 4)])
def test_a_gate_is_told_from_the_sizes(ffn_matrices: int, expected: int) -> None:
    layers, hidden, ffn, vocabulary = 4, 64, 256, 1000
    count = layers * (4 * hidden * hidden + ffn_matrices * hidden * ffn) + vocabulary * hidden
    model = Model("m", "x", layers, hidden, 8, 8, None, ffn, vocabulary, parameters=count)
    assert model.matrices == expected


TRUNCATED = safetensors({"w": tensor("BF16", [4], 0, 8)}, 8)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is cut short"),
        (b"abc", "is cut short"),
        (TRUNCATED[:20], "is cut short: its header claims 62 bytes of 12"),
        (TRUNCATED[:-1], "claims 8 bytes of tensors, the file has 7"),
        ((1 << 42).to_bytes(8, "little") + b"{}", "claims 4398046511104 bytes of 2"),
        (safetensors({"w": tensor("BF16", [1 << 40], 0, 1 << 41)}, 2), "claims 2199023255552"),
        (safetensors({"w": tensor("BF16", [1 << 40], 0, 2)}, 2), "claims 1099511627776"),
        (safetensors({"w": tensor("BF16", [-1, -1], 0, 2)}, 2), "doesn't describe its tensors"),
        (safetensors({"w": {"dtype": "BF16"}}), "doesn't describe its tensors"),
        (safetensors(b"[1]"), "no list of tensors"),
        (safetensors(b"\xff"), "is no JSON"),
        (safetensors(b"[" * 100_000), "is no JSON"),
    ],
)
def test_a_header_is_not_believed(tmp_path: Path, content: bytes, said: str) -> None:
    folder = make_model(tmp_path, model__safetensors=content)
    with pytest.raises(ColdtraceError) as error:
        read_model(folder)
    assert said in error.value.message and "\n" not in error.value.message


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    folder = make_model(tmp_path)
    os.mkfifo(folder / "extra.safetensors")
    with pytest.raises(ColdtraceError, match="it is not a file"):
        read_model(folder)


@pytest.mark.parametrize(
    ("config", "index", "said"),
    [
        ('{"a":', None, "is no JSON"),
        ("[1]", None, "holds no JSON object"),
        ("{}", '{"weight_map": {"a": "gone.safetensors"}}', "gone.safetensors, which is missing"),
        ("{}", '{"weight_map": {"a": "../x"}}', "outside its folder"),
        ("{}", "{}", "no weight_map"),
    ],
)
def test_a_bad_directory_is_one_line(
    tmp_path: Path, config: str, index: str | None, said: str
) -> None:
    (tmp_path / "config.json").write_text(config)
    if index is not None:
        (tmp_path / "model.safetensors.index.json").write_text(index)
    with pytest.raises(ColdtraceError, match=said):
        read_model(tmp_path)


def test_no_directory_and_no_config(tmp_path: Path) -> None:
    with pytest.raises(ColdtraceError, match="is no directory"):
        read_model(tmp_path / "none")
    with pytest.raises(ColdtraceError, match=r"has no config\.json"):
        read_model(tmp_path)


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("vllm serve m", {}),
        ("vllm serve m -tp 2 --pipeline-parallel-size=4", {"tp": 2, "pp": 4}),
        (
            "vllm serve m --enforce-eager --load-format tensorizer",
            {"eager": True, "load_format": "tensorizer"},
        ),
        ("vllm serve m --cuda-graph-sizes 16 -dp 2", {"capture_sizes": (1, 2, 4, 8, 16), "dp": 2}),
        ("vllm serve m --cudagraph-capture-sizes 1 3 5", {"capture_sizes": (1, 3, 5)}),
        ("vllm serve m -tp many", {}),
    ],
)
def test_serving_arguments(command: str, expected: dict[str, Any]) -> None:
    assert read_serving(command.split()) == Serving(**expected)


def test_the_model_that_a_command_names() -> None:
    assert read_model_argument(["vllm", "serve", "/m", "-tp", "2"]) == "/m"
    assert read_model_argument(["python", "-m", "x", "--model=/n"]) == "/n"
    assert read_model_argument(["vllm", "serve", "--port", "1"]) is None


def test_capture_sizes_are_the_engines() -> None:
    assert sizes_up_to(1) == (1, 2, 4)
    assert sizes_up_to(56)[-1] == 56 and len(sizes_up_to(56)) == 10
    assert [len(first_sizes(count)) for count in (0, 2, 3, 35)] == [0, 2, 3, 35]
    assert first_sizes(35)[-1] == 256


def test_the_page_cache_is_asked(tmp_path: Path) -> None:
    file = tmp_path / "w"
    file.write_bytes(bytes(1 << 20))
    assert page_cache_share([file]) == 1.0  # just written
    assert page_cache_share([]) is None
    assert page_cache_share([tmp_path / "none"]) is None


def test_this_node_is_known() -> None:
    node = this_node(Path("/"))
    assert node.name and node.cpu and node.cores > 0
