"""The signatures of vLLM, held against the functions that each of its versions has."""

from __future__ import annotations

import ast
import gzip
import json
import sysconfig
import tomllib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from analysis.signature import FOLDER, Signatures

DATA = tomllib.loads((FOLDER / "vllm.toml").read_text())
SITE = "/srv/v/lib/python3.12/site-packages"

STEPS = {
    "framework_bootstrap": [
        "interpreter_start",
        "imports",
        "platform_detection",
        "engine_config",
        "model_inspection",
        "engine_process_start",
        "worker_start",
        "device_init",
    ],
    "tokenizer_init": ["api_server_tokenizer", "engine_tokenizer"],
    "model_loading": ["model_structure", "load_weights", "weight_postprocess"],
    "torch_compile": ["dynamo_transform", "graph_compile", "graph_cache_load"],
    "kv_cache_profiling": ["profile_run", "kv_cache_allocation", "kernel_warmup"],
    "cuda_graph_capture": ["graph_capture"],
    "api_readiness": ["app_build", "listen"],
}
SUBSTEPS = [substep for substeps in STEPS.values() for substep in substeps]

TOLD_BY_OTHERS = {"interpreter_start", "imports", "dynamo_transform", "listen"}
"""Sub-steps that no function of vLLM's own has to tell."""


@dataclass(frozen=True)
class Table:
    """Which functions each version of one package has, in the files that matter."""

    versions: list[str]
    files: dict[str, dict[str, list[list[int]]]]

    def has(self, function: str, version: str) -> bool:
        file, _, name = function.rpartition(":")
        index = self.versions.index(version)
        runs = self.files.get(file, {}).get(name, [])
        return any(first <= index <= last for first, last in runs)


def _tables() -> dict[str, Table]:
    packed = Path(__file__).with_name("functions.json.gz").read_bytes()
    return {name: Table(**table) for name, table in json.loads(gzip.decompress(packed)).items()}


TABLES = _tables()
VLLM = TABLES["vllm"].versions


def _in(entry: dict, *kinds: str) -> list[str]:
    return [function for kind in kinds for function in entry.get(kind, [])]


def _by_substep() -> Iterator[tuple[str, str]]:
    """(function, sub-step) for all that a signature says, roles included."""
    for step in DATA["step"]:
        for substep in step["substep"]:
            for function in _in(substep, "functions", "outer", "whole"):
                yield function, substep["id"]
    for group in DATA["by_role"]:
        for function in _in(group, "functions", "outer"):
            for substep in {group["otherwise"], *group["substep"].values()}:
                yield function, substep


BY_SUBSTEP = list(_by_substep())
ROLE_FUNCTIONS = {role["id"]: _in(role, "functions") for role in DATA["role"]}
WAIT_FUNCTIONS = {wait["for"]: wait["functions"] for wait in DATA["wait"]}
FUNCTIONS = sorted(
    {function for function, _ in BY_SUBSTEP}
    | {function for role in DATA["role"] for function in _in(role, "functions", "made_in")}
    | {function for functions in WAIT_FUNCTIONS.values() for function in functions}
    | {*DATA["idle"]["functions"], *DATA["ready"]["functions"]}
)


@pytest.fixture(scope="module")
def signatures() -> Signatures:
    return Signatures.load()


def _exists(function: str) -> bool:
    """Whether a version of its package, or the running interpreter, has a function."""
    file, _, name = function.rpartition(":")
    if file.startswith("<frozen "):
        file = f"/{file[len('<frozen ') : -1]}.py"
    table = TABLES.get(file.split("/")[1])
    if table is not None:
        return name in table.files.get(file, {})
    return _standard_library_has(file, name)


def _standard_library_has(file: str, name: str) -> bool:
    path = Path(sysconfig.get_path("stdlib"), file.removeprefix("/"))
    if not path.exists():
        return False
    body = ast.parse(path.read_text()).body
    *classes, leaf = name.split(".")
    for part in classes:
        body = [n for node in body if getattr(node, "name", "") == part for n in node.body]
    return leaf == "<module>" or any(getattr(node, "name", "") == leaf for node in body)


def _untold(package: str, version: str, functions: dict[str, list[str]]) -> list[str]:
    """The keys of `functions` of whose functions `version` has none."""
    table = TABLES[package]
    return [
        key
        for key, each in functions.items()
        if not any(table.has(function, version) for function in each)
    ]


def _telling(substeps: list[str]) -> dict[str, list[str]]:
    return {wanted: [each for each, told in BY_SUBSTEP if told == wanted] for wanted in substeps}


def test_every_function_named_exists_in_some_version() -> None:
    # What is missing here may be missing in functions.json.gz only: see its maker.
    assert [function for function in FUNCTIONS if not _exists(function)] == []


@pytest.mark.parametrize("version", VLLM)
def test_every_vllm_tells_every_substep(version: str) -> None:
    own = [substep for substep in SUBSTEPS if substep not in TOLD_BY_OTHERS]
    assert _untold("vllm", version, _telling(own)) == []


@pytest.mark.parametrize("version", VLLM)
def test_every_vllm_tells_its_roles_and_waits(version: str) -> None:
    roles = ["api_server", "engine_core", "worker", "model_inspection"]
    assert _untold("vllm", version, {role: ROLE_FUNCTIONS[role] for role in roles}) == []
    assert _untold("vllm", version, {role: WAIT_FUNCTIONS[role] for role in roles}) == []


@pytest.mark.parametrize("version", TABLES["torch"].versions)
def test_every_torch_tells_its_compilation(version: str) -> None:
    compilation = _telling(["dynamo_transform", "graph_compile", "graph_cache_load"])
    assert _untold("torch", version, compilation) == []


@pytest.mark.parametrize(
    ("package", "function"),
    [
        ("uvicorn", "/uvicorn/server.py:Server.startup"),
        ("uvicorn", "/uvicorn/server.py:Server._serve"),
        ("uvloop", "/uvloop/__init__.py:run"),
        ("zmq", "/zmq/sugar/socket.py:Socket.poll"),
    ],
)
def test_the_server_s_libraries_are_as_named_in_every_version(package: str, function: str) -> None:
    assert function in FUNCTIONS
    assert all(TABLES[package].has(function, version) for version in TABLES[package].versions)


@pytest.mark.parametrize("function", DATA["ready"]["functions"])
def test_readiness_is_below_a_function_that_is_there_in_every_version(function: str) -> None:
    table = TABLES[function.split("/")[1]]
    assert all(table.has(function, version) for version in table.versions)


def test_no_function_tells_two_substeps() -> None:
    functions: Counter[str] = Counter()
    for step in DATA["step"]:
        for substep in step["substep"]:
            functions.update(_in(substep, "functions", "outer", "whole"))
    for group in DATA["by_role"]:
        functions.update(_in(group, "functions", "outer"))
    assert [function for function, times in functions.items() if times > 1] == []


def test_steps_and_substeps_are_those_documented(signatures: Signatures) -> None:
    found = {step.id: [substep.id for substep in step.substeps] for step in signatures.steps}
    assert found == STEPS
    assert list(found) == list(STEPS)


def test_every_name_used_is_one_defined(signatures: Signatures) -> None:
    roles = set(signatures.roles)
    assert {wait["for"] for wait in DATA["wait"]} <= roles
    assert {role for group in DATA["by_role"] for role in group["substep"]} <= roles
    assert DATA["ready"]["role"] in roles
    assert {substep for _, substep in BY_SUBSTEP} <= set(SUBSTEPS)
    assert {DATA["module_bodies"], DATA["before_python"]} <= set(SUBSTEPS)
    assert {role["substep"] for role in DATA["role"] if "substep" in role} <= set(SUBSTEPS)
    assert {absent["of"] for absent in DATA["absent"]} <= {*STEPS, *SUBSTEPS}


@pytest.mark.parametrize("view", [view["id"] for view in DATA["view"]])
def test_a_view_shows_every_substep_once(signatures: Signatures, view: str) -> None:
    shown = [substep for group in signatures.view(view) for substep in group.substeps]
    assert sorted(shown) == sorted(SUBSTEPS)


def test_an_unconditional_reason_comes_last() -> None:
    for step in {absent["of"] for absent in DATA["absent"]}:
        rules = [absent for absent in DATA["absent"] if absent["of"] == step]
        assert all("ran_in" in rule or "arguments" in rule for rule in rules[:-1])


@pytest.mark.parametrize(
    ("file", "name", "substep"),
    [
        (
            f"{SITE}/vllm/v1/engine/core.py",
            "EngineCore._initialize_kv_caches",
            "kv_cache_allocation",
        ),
        (f"{SITE}/torch/_inductor/compile_fx.py", "compile_fx", "graph_compile"),
        ("/usr/lib/python3.12/multiprocessing/spawn.py", "spawn_main", "engine_process_start"),
        ("<frozen site>", "main", "interpreter_start"),
    ],
)
def test_a_function_is_found_by_its_file_and_name(
    signatures: Signatures, file: str, name: str, substep: str
) -> None:
    mark = signatures.mark(file, name)
    assert mark is not None
    assert mark.substep == substep


@pytest.mark.parametrize(
    ("file", "name"),
    [
        # On the stack whenever the compiled model runs, compiling or not.
        (f"{SITE}/vllm/compilation/decorators.py", "_support_torch_compile.<locals>.__call__"),
        (f"{SITE}/vllm/compilation/wrapper.py", "TorchCompileWithNoGuardsWrapper.__call__"),
        (f"{SITE}/vllm/compilation/piecewise_backend.py", "PiecewiseBackend.__call__"),
        (f"{SITE}/vllm/compilation/cuda_graph.py", "CUDAGraphWrapper.__call__"),
        # Part of the profile run, the warm-up and the capture alike.
        (f"{SITE}/vllm/v1/worker/gpu_model_runner.py", "GPUModelRunner._dummy_run"),
        # Another project's file with the end of a name in common.
        ("/home/me/myvllm/v1/engine/core.py", "EngineCore.__init__"),
    ],
)
def test_a_function_that_proves_nothing_is_not_named(
    signatures: Signatures, file: str, name: str
) -> None:
    assert signatures.mark(file, name) is None


def test_a_tokenizer_is_its_process_s(signatures: Signatures) -> None:
    mark = signatures.mark(f"{SITE}/vllm/tokenizers/registry.py", "get_tokenizer")
    assert mark is not None
    assert mark.substep_in("api_server") == "api_server_tokenizer"
    assert mark.substep_in("engine_core") == "engine_tokenizer"
    assert mark.substep_in("worker") == "engine_tokenizer"


@pytest.mark.parametrize(
    ("command", "is_server"),
    [
        ("vllm serve model", True),
        ("/v/bin/python3.12 /v/bin/vllm serve model --port 9", True),
        ("python -m vllm.entrypoints.openai.api_server --model m", True),
        ("python3 -m vllm.entrypoints.cli.main serve m", True),
        ("vllm bench serve", False),
        ("vllm chat", False),
        ("python -m http.server", False),
    ],
)
def test_a_server_is_known_by_its_command(
    signatures: Signatures, command: str, is_server: bool
) -> None:
    assert signatures.is_command(command.split()) is is_server


@pytest.mark.parametrize(
    ("filename", "argv", "role"),
    [
        (
            "/v/bin/python",
            ["python", "-m", "vllm.model_executor.models.registry"],
            "model_inspection",
        ),
        (
            "/v/bin/python",
            ["python", "-c", "from multiprocessing.resource_tracker import main;main(33)"],
            "resource_tracker",
        ),
        ("/usr/bin/g++", ["g++", "k.cpp"], "compiler"),
        ("/usr/bin/x86_64-linux-gnu-g++-12", ["x86_64-linux-gnu-g++-12"], "compiler"),
        ("/usr/lib/gcc/x86_64-linux-gnu/12/cc1plus", ["cc1plus", "-O3"], "compiler"),
        ("/usr/local/cuda/bin/ptxas", ["ptxas", "-arch=sm_90a"], "compiler"),
        ("/v/bin/python", ["VLLM::EngineCore"], "engine_core"),
        ("/v/bin/python", ["VLLM::Worker_TP0"], "worker"),
        ("/usr/bin/git", ["git", "status"], None),
    ],
)
def test_a_role_is_known_by_its_command(
    signatures: Signatures, filename: str, argv: list[str], role: str | None
) -> None:
    assert signatures.role_of_command(filename, argv) == role


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/m/model-00001-of-00002.safetensors", "weights"),
        ("/m/pytorch_model.bin", "weights"),
        ("/m/q4.gguf", "weights"),
        ("/m/tokenizer.json", "tokenizer"),
        ("/m/config.json", "configuration"),
        ("/m/model.safetensors.index.json", "configuration"),
        ("/root/.cache/vllm/torch_compile_cache/ab/rank_0_0/backbone/x.py", "compile_cache"),
        ("/tmp/torchinductor_me/ab/kernel.so", "compile_cache"),
        ("/root/.cache/vllm/modelinfos/llama.json", "model_info_cache"),
        (f"{SITE}/torch/lib/libtorch_cpu.so", "shared_object"),
        ("/usr/lib/libstdc++.so.6.0.30", "shared_object"),
        (f"{SITE}/distutils-precedence.pth", None),
        (f"{SITE}/vllm/version.py", None),
    ],
)
def test_a_file_has_a_class(signatures: Signatures, path: str, kind: str | None) -> None:
    found = signatures.file_class(path)
    assert (found and found.id) == kind
