"""One row a start: what it depended on, and the seconds that each sub-step took.

Rows come from traces or from tables with the columns of analysis/reference/.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from analysis.features import (
    DISABLED,
    HIT,
    MISS,
    OFF,
    Caches,
    Model,
    Node,
    Serving,
    read_model,
    read_model_argument,
    read_serving,
    sizes_up_to,
)
from analysis.machine import this_node
from analysis.start import Start
from tracer.errors import ColdtraceError

UNATTRIBUTED = "unattributed"
PUBLISHED_SIZES = sizes_up_to(256)
"""What the published starts captured where they don't say: see analysis/reference/README.md."""
MXFP4_BYTES = 17 / 32  # a byte of scale for 32 values of 4 bits

_BUILDERS = frozenset({"ld", "ld.bfd", "ld.gold", "ld.lld", "ptxas"})

Row = TypeVar("Row", Model, Serving, Caches, Node)


@dataclass(frozen=True, slots=True)
class Observation:
    """One start. `seconds` lacks the sub-steps whose time isn't known, or was spent in an
    unknown state of the caches; `total_s` is from exec to ready."""

    model: Model
    serving: Serving
    caches: Caches
    node: Node
    seconds: Mapping[str, float]
    total_s: float
    versions: Mapping[str, str]
    source: str
    experiment: str = ""
    runs: int = 1

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values; `from_json` reads them back."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Any) -> Observation:
        """Raises ColdtraceError for what `to_json` never wrote."""
        try:
            seconds = {str(key): float(value) for key, value in data["seconds"].items()}
            return cls(
                model=_made(Model, data["model"]),
                serving=_made(Serving, data["serving"]),
                caches=_made(Caches, data["caches"]),
                node=_made(Node, data["node"]),
                seconds=seconds,
                total_s=float(data["total_s"]),
                versions=dict(data["versions"]),
                source=str(data["source"]),
                experiment=str(data["experiment"]),
                runs=int(data["runs"]),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ColdtraceError(f"a row of the profile can't be read: {error!r}") from error


def _made(kind: type[Row], data: Mapping[str, Any]) -> Row:
    known = _TYPES[kind]
    values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in data.items()}
    for key, value in values.items():
        if key in known and not isinstance(value, known[key]):
            raise TypeError(f"{key} is {value!r:.40}")
    return kind(**{key: value for key, value in values.items() if key in known})


def _types(kind: type) -> dict[str, tuple[type, ...]]:
    """What a value of each field may be; of a list and a mapping only that it is one."""
    types = {}
    for name, hint in get_type_hints(kind).items():
        choices = get_args(hint) if isinstance(hint, UnionType) else (hint,)
        plain = tuple(get_origin(choice) or choice for choice in choices)
        types[name] = (*plain, int) if float in plain else plain
    return types


_TYPES: dict[Any, dict[str, tuple[type, ...]]] = {
    kind: _types(kind) for kind in (Model, Serving, Caches, Node)
}


# From a trace --------------------------------------------------------------------


def observe(
    start: Start,
    model: str | Path | None = None,
    page_cache: float | None = None,
    node: Node | None = None,
) -> Observation:
    """The row of a traced start that became ready; raise ColdtraceError for any other.

    `model` is its directory, where the trace's own word isn't a path here;
    `page_cache` the share of the weights that was in memory, None for the trace's own word.
    """
    result = start.result
    if result.outcome != "ready":
        raise ColdtraceError(f"the start never became ready ({result.outcome}): nothing to learn")
    if result.missed_ns:
        raise ColdtraceError("the start was joined under way: nothing to learn of a whole one")
    command = result.command
    seconds = {sub.id: sub.duration_ns / 1e9 for step in result.steps for sub in step.substeps}
    seconds[UNATTRIBUTED] = result.unattributed_ns / 1e9
    happened = {step.id: step.happened for step in result.steps}
    serving = read_serving(command)
    if not happened["cuda_graph_capture"]:
        serving = replace(serving, capture_sizes=())
    features = replace(read_model(model or _model_of(start)), graph_kb=_graph_kb(start))
    host = start.trace.meta.get("host", {})
    compiles = _compile_state(start) if happened["torch_compile"] else OFF
    roles = set(start.roles.values())
    return Observation(
        model=features,
        serving=serving,
        caches=Caches(
            page_cache=_held_weights(start) if page_cache is None else page_cache,
            compile=compiles,
            kernels_cold=compiles == MISS,
            model_info=MISS if "model_inspection" in roles else HIT,
        ),
        node=node or _node_of(host),
        seconds=seconds,
        total_s=result.wall_ns / 1e9,
        versions=dict(result.versions),
        source="trace",
    )


def _model_of(start: Start) -> str | Path:
    """The directory of the model that a start served, as far as it is here."""
    named = read_model_argument(start.result.command)
    if named is not None and Path(named).is_dir():
        return named
    for file in start.trace.files():
        kind = start.signatures.file_class(file.path)
        if kind is not None and kind.id == "weights" and Path(file.path).parent.is_dir():
            return Path(file.path).parent
    raise ColdtraceError(
        f"the model of this start, {named or 'which its command does not name'}, isn't a "
        "directory here; say where it is with --model"
    )


def _held_weights(start: Start) -> float | None:
    """The share of the weights that was in memory before the start, None if unknown."""
    for cache in start.result.caches:
        if cache.id == "page_cache.weights" and cache.held_bytes is not None and cache.size_bytes:
            return cache.held_bytes / cache.size_bytes
    return None


def _graph_kb(start: Start) -> float | None:
    """Size of the traced graph, where the start read it from its compile cache."""
    sizes = [
        file.size_bytes
        for file in start.trace.files()
        if file.path.endswith("/computation_graph.py") and file.size_bytes
    ]
    return max(sizes) / 1000 if sizes else None


def _compile_state(start: Start) -> str:
    """A miss if something was built to the end: what is only preprocessed, for a cache's
    key or a test of the compiler, isn't."""
    return MISS if any(life.program in _BUILDERS for life in start.result.processes) else HIT


def _node_of(host: Mapping[str, Any]) -> Node:
    """The node of a trace: this one, if what the trace says of its host fits."""
    here = this_node()
    cores = host.get("cpus", here.cores)
    if cores == here.cores:
        return here
    return Node(f"another machine of {cores} cores", str(host.get("machine", "")), int(cores))


# From tables ---------------------------------------------------------------------

_COLUMNS = {
    "detect_platform": "platform_detection",
    "llm_imports": "imports",
    "get_model_info": "model_inspection",
    "worker_init": "worker_start",
    "load_weights": "load_weights",
    "model_init": "model_structure",
    "dynamo_transform_time": "dynamo_transform",
    "graph_compile_general_shape": "graph_compile",
    "graph_compile_cached": "graph_cache_load",
    "kv_cache_profiling": "profile_run",
    "graph_capturing": "graph_capture",
    "tokenizer_init": "engine_tokenizer",
}
"""Columns of a table, and what the same time is called in a trace."""
_NEEDED = {"node", "model", "load_weights", "graph_capturing"}
_NEEDED_OF_MODELS = {"model", "size_b", "num_layers", "tokenizer_size_mb"}
_NO_COMPILE = ("dynamo_transform", "graph_compile", "graph_cache_load")
_ALWAYS = set(_COLUMNS.values()) - set(_NO_COMPILE)
_PAGE_CACHE = {"warm": 1.0, "cold": 0.0}
_FAMILIES = (  # of models that are told by their names
    ("distill-llama", "llama"),
    ("distill-qwen", "qwen2"),
    ("llama", "llama"),
    ("yi-", "llama"),
    ("qwen-14.3b", "qwen2moe"),
    ("qwen", "qwen2"),
    ("gpt-oss", "gptoss"),
    ("deepseek-v2", "deepseekv2"),
    ("granite4", "granitemoehybrid"),
)


def read_tables(starts: Path, models: Path) -> list[Observation]:
    """The rows of a table of starts, with the features of a table of models.

    First runs are left out where the average of the later ones is there too.
    Raises ColdtraceError where a table isn't one, or a model has no features.
    """
    by_name = {row["model"]: _table_model(row, models) for row in _rows(models, _NEEDED_OF_MODELS)}
    rows = _rows(starts, _NEEDED)
    averaged = {_setting(row) for row in rows if row.get("run_kind") == "average"}
    observations = []
    for row in rows:
        if row.get("run_kind") != "average" and _setting(row) in averaged:
            continue
        if row["model"] not in by_name:
            raise ColdtraceError(f"{models} has no model {row['model']}, which {starts} names")
        observations.append(_table_row(row, by_name[row["model"]], starts))
    if not observations:
        raise ColdtraceError(f"{starts} holds no starts")
    return observations


def _setting(row: Mapping[str, str]) -> tuple[str, ...]:
    names = ("experiment", "node", "model", "config_key", "config_value")
    return tuple(row.get(name, "") for name in names)


def _rows(path: Path, needed: Iterable[str]) -> list[dict[str, str]]:
    try:
        with open(path, newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            missing = sorted(set(needed) - set(reader.fieldnames or ()))
            if missing:
                raise ColdtraceError(f"{path} lacks the columns {', '.join(missing)}")
            return [{k: v or "" for k, v in row.items() if k is not None} for row in reader]
    except OSError as error:
        raise ColdtraceError(f"can't read {path}: {error.strerror}") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise ColdtraceError(f"{path} is no table of comma-separated values: {error}") from error


def _number(row: Mapping[str, str], name: str, path: Path) -> float | None:
    text = row.get(name, "")
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise ColdtraceError(f"{path}: {name} of {row['model']} is no number: {text!r}")
    return value


def _table_model(row: Mapping[str, str], path: Path) -> Model:
    def whole(name: str) -> int | None:
        value = _number(row, name, path)
        return None if value is None else round(value)

    nominal_b = _number(row, "size_b", path)
    parameters = whole("true_params") or (round(nominal_b * 1e9) if nominal_b else None)
    active_b = _number(row, "active_size_b", path)
    tokenizer_mb = _number(row, "tokenizer_size_mb", path)
    model = Model(
        name=row["model"],
        family=row.get("family") or _family_by_name(row["model"]),
        layers=whole("num_layers"),
        hidden=whole("hidden_size"),
        heads=whole("num_heads"),
        kv_heads=whole("num_kv_heads"),
        ffn=whole("ffn_size"),
        vocabulary=whole("vocab_size"),
        experts=whole("num_experts") or 0,
        active_experts=whole("active_experts") or 0,
        parameters=parameters,
        active_parameters=round(active_b * 1e9) if active_b else parameters,
        weight_bytes=None if parameters is None else 2 * parameters,
        tokenizer_bytes=None if tokenizer_mb is None else round(tokenizer_mb * 1e6),
        graph_kb=_number(row, "compiled_graph_size_kb", path),
        notes=() if row.get("true_params") else ("parameters by the nominal size",),
    )
    given = whole("weight_bytes")
    if given is not None:
        return replace(model, weight_bytes=given)
    return _mxfp4(model) if "MXFP4" in row.get("true_params_notes", "") else model


def _mxfp4(model: Model) -> Model:
    """With the experts in four bits and all else in sixteen."""
    if not (model.layers and model.experts and model.hidden and model.ffn and model.parameters):
        return model
    in_experts = 3 * model.layers * model.experts * model.hidden * model.ffn
    rest = max(model.parameters - in_experts, 0)
    return replace(
        model,
        quantization="mxfp4",
        weight_bytes=round(MXFP4_BYTES * in_experts + 2 * rest),
    )


def _family_by_name(name: str) -> str | None:
    lower = name.lower()
    known = next((family for part, family in _FAMILIES if part in lower), None)
    letters = re.match("[a-z]+", lower)
    return known or (letters[0] if letters else None)


def _table_row(row: Mapping[str, str], model: Model, path: Path) -> Observation:
    options = _settings(row)
    compiled = row.get("compile_cache") or HIT
    if compiled not in (HIT, MISS, DISABLED, OFF):
        raise ColdtraceError(f"{path}: compile_cache of {row['model']} is {compiled!r}")
    state = row.get("weights_state", "")
    caches = Caches(
        page_cache=_PAGE_CACHE.get(state),
        compile=compiled,
        kernels_cold=compiled != HIT and row.get("run_kind") == "first_run",
    )
    parts = {name: _number(row, column, path) for column, name in _COLUMNS.items()}
    known = {name: value for name, value in parts.items() if value is not None}
    total = _number(row, "actual_total_time", path) or _number(row, "total_time", path)
    if total is None:
        raise ColdtraceError(f"{path}: a start of {row['model']} has no total time")
    if row.get("actual_total_time") and known.keys() >= _ALWAYS:
        known[UNATTRIBUTED] = max(total - sum(known.values()), 0.0)
    if state not in _PAGE_CACHE:
        known.pop("load_weights", None)
    known |= dict.fromkeys((name for name in _NO_COMPILE if name not in known), 0.0)
    return Observation(
        model=model,
        serving=Serving(
            capture_sizes=_table_sizes(options.get("cuda_graph_sizes")),
            load_format=options.get("load_format", "auto"),
        ),
        caches=caches,
        node=Node(row["node"], row.get("cpu", ""), 0, row.get("gpu", ""), row.get("storage", "")),
        seconds=known,
        total_s=total,
        versions={"vllm": row.get("vllm_version", ""), "torch": row.get("torch_version", "")},
        source=path.name,
        experiment=row.get("experiment", ""),
        runs=int(_number(row, "n_runs_averaged", path) or 1),
    )


def _settings(row: Mapping[str, str]) -> dict[str, str]:
    keys = row.get("config_key", "").split(";")
    values = row.get("config_value", "").split(";")
    return dict(zip(keys, values, strict=False))


def _table_sizes(text: str | None) -> tuple[int, ...]:
    sizes = [int(word) for word in (text or "").split() if word.isdecimal()]
    if not sizes:
        return PUBLISHED_SIZES
    return sizes_up_to(sizes[0]) if len(sizes) == 1 else tuple(sizes)


def models_by_time(rows: Sequence[Observation]) -> list[str]:
    """The names of the models, in the order of their first rows."""
    return list(dict.fromkeys(row.model.name for row in rows))
