"""A row a start, from traces and from tables."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from analysis.features import DISABLED, HIT, MISS, OFF
from analysis.observations import Observation, observe, read_tables
from analysis.profile import TABLES
from analysis.start import Start
from tests.analysis.models import traced_start, whole_model
from tracer.errors import ColdtraceError

MODELS = (
    "model,size_b,num_layers,tokenizer_size_mb,true_params,num_experts,active_size_b,"
    "hidden_size,ffn_size,true_params_notes\n"
    "small,1,10,2,900000000,,,,,\n"
    "mixed,4,2,2,100,4,0.00000002,2,3,stored as MXFP4\n"
)
STARTS = (
    "experiment,node,model,config_key,config_value,run_kind,detect_platform,llm_imports,"
    "get_model_info,worker_init,load_weights,model_init,dynamo_transform_time,"
    "graph_compile_cached,kv_cache_profiling,graph_capturing,tokenizer_init,"
    "actual_total_time,compile_cache,weights_state\n"
)


def tables(folder: Path, *rows: str, models: str = MODELS) -> tuple[Path, Path]:
    (folder / "starts.csv").write_text(STARTS + "\n".join(rows) + "\n")
    (folder / "models.csv").write_text(models)
    return folder / "starts.csv", folder / "models.csv"


def test_a_traced_start_becomes_a_row(tmp_path: Path) -> None:
    model = whole_model(tmp_path / "m")
    row = observe(Start.open(traced_start(tmp_path, model, weights_ms=500)))
    assert row.total_s == pytest.approx(0.6)
    assert row.seconds["load_weights"] == pytest.approx(0.5, abs=0.011)
    assert sum(row.seconds.values()) == pytest.approx(row.total_s)
    assert row.model.weight_bytes == 96 and row.versions == {"vllm": "0.32.0"}
    assert row.serving.eager and row.serving.capture_sizes == ()
    assert row.caches.compile == OFF and row.caches.page_cache is None


def test_how_cold_the_weights_were_is_the_traces_own_word(tmp_path: Path) -> None:
    model = whole_model(tmp_path / "m")
    start = Start.open(traced_start(tmp_path, model, held_bytes=24))
    assert observe(start).caches.page_cache == 0.25
    assert observe(start, page_cache=1.0).caches.page_cache == 1.0


def test_a_start_that_failed_or_was_joined_is_no_row(tmp_path: Path) -> None:
    model = whole_model(tmp_path / "m")
    failed = traced_start(tmp_path / "a", model, outcome="failed")
    with pytest.raises(ColdtraceError, match="never became ready"):
        observe(Start.open(failed))
    joined = traced_start(tmp_path / "b", model, seen_from_ns=5_050_000_000)
    with pytest.raises(ColdtraceError, match="joined under way"):
        observe(Start.open(joined))


def test_a_model_that_is_not_here_is_asked_for(tmp_path: Path) -> None:
    trace = traced_start(tmp_path, tmp_path / "gone")
    with pytest.raises(ColdtraceError, match="say where it is with --model"):
        observe(Start.open(trace))
    row = observe(Start.open(trace), model=whole_model(tmp_path / "elsewhere"))
    assert row.model.name == "elsewhere"


def test_a_row_survives_json() -> None:
    for row in read_tables(*TABLES)[:40]:
        assert Observation.from_json(json.loads(json.dumps(row.to_json()))) == row


def test_a_row_of_another_kind_is_refused() -> None:
    good = read_tables(*TABLES)[0].to_json()
    for bad in (
        {},
        None,
        good | {"seconds": {"a": "b"}},
        good | {"model": {"name": 1, "family": []}} | {"node": 1},
        good | {"model": good["model"] | {"layers": "x"}},
    ):
        with pytest.raises(ColdtraceError, match="can't be read"):
            Observation.from_json(bad)


def test_a_table_row(tmp_path: Path) -> None:
    line = "e,n,small,cuda_graph_sizes,56,average,1,2,3,4,5,6,7,8,9,10,11,70,hit,cold"
    (row,) = read_tables(*tables(tmp_path, line))
    assert row.seconds["load_weights"] == 5 and row.seconds["graph_cache_load"] == 8
    assert row.seconds["unattributed"] == pytest.approx(70 - sum(range(1, 12)))
    assert (row.caches.page_cache, row.caches.compile) == (0.0, HIT)
    assert row.serving.capture_sizes is not None and len(row.serving.capture_sizes) == 10
    assert row.model.weight_bytes == 1_800_000_000


def test_first_runs_count_only_without_an_average(tmp_path: Path) -> None:
    average = "e,n,small,,,average,1,1,1,1,1,1,1,1,1,1,1,20,hit,warm"
    first = average.replace("average", "first_run").replace("hit", "miss")
    assert len(read_tables(*tables(tmp_path, average, first))) == 1
    (row,) = read_tables(*tables(tmp_path, first))
    assert row.caches.compile == MISS and row.caches.kernels_cold


def test_weights_of_an_unknown_page_cache_teach_nothing(tmp_path: Path) -> None:
    (row,) = read_tables(
        *tables(tmp_path, "e,n,small,,,average,1,1,1,1,9,1,1,1,1,1,1,20,hit,mixed")
    )
    assert "load_weights" not in row.seconds and row.total_s == 20


def test_four_bits_an_expert_weight(tmp_path: Path) -> None:
    line = "e,n,mixed,,,average,1,1,1,1,1,1,1,1,1,1,1,20,hit,warm"
    (row,) = read_tables(*tables(tmp_path, line))
    assert row.model.weight_bytes == 17 * 144 // 32  # 3 matrices x 2 layers x 4 experts x 2 x 3
    assert row.model.active_parameters == 20


@pytest.mark.parametrize(
    ("line", "models", "said"),
    [
        ("e,n,none,,,average,1,1,1,1,1,1,1,1,1,1,1,20,hit,warm", MODELS, "no model none"),
        ("e,n,small,,,average,1,1,1,1,x,1,1,1,1,1,1,20,hit,warm", MODELS, "load_weights of small"),
        ("e,n,small,,,average,1,1,1,1,nan,1,1,1,1,1,1,20,hit,warm", MODELS, "is no number"),
        ("e,n,small,,,average,1,1,1,1,1,1,1,1,1,1,1,20,often,warm", MODELS, "compile_cache"),
        ("e,n,small,,,average,1,1,1,1,1,1,1,1,1,1,1,,hit,warm", MODELS, "no total time"),
        ("", MODELS, "holds no starts"),
        ("", "model\nx\n", "lacks the columns num_layers, size_b"),
    ],
)
def test_a_bad_table_is_one_line(tmp_path: Path, line: str, models: str, said: str) -> None:
    with pytest.raises(ColdtraceError, match=said):
        read_tables(*tables(tmp_path, line, models=models))


def test_the_published_tables_are_read_whole() -> None:
    rows = read_tables(*TABLES)
    assert {row.node.name for row in rows} == {"n1", "n3", "node5"}
    assert sum(row.experiment == "figure-rest" for row in rows) == 22
    assert {row.caches.compile for row in rows} == {HIT, DISABLED, OFF}
    by_name = {row.model.name: row.model for row in rows}
    assert by_name["gpt-oss-20b"].weight_bytes == pytest.approx(13.76e9, rel=0.001)
    assert by_name["yi-6b"].family == "llama" and by_name["qwen-14.3b"].family == "qwen2moe"
    # The bytes are right if a cold load of them takes what the same disk gives any model.
    rates = [
        row.seconds["load_weights"] / row.model.weight_bytes * 1e9
        for row in rows
        if row.caches.page_cache == 0 and row.model.weight_bytes
    ]
    assert max(rates) / min(rates) < 1.07
