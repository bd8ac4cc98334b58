"""The regressions: what they find in starts whose coefficients are known."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from analysis.features import MISS, OFF, Caches, Model, Serving
from analysis.observations import Observation
from analysis.predictor import (
    SUBSTEPS,
    Fit,
    Situation,
    SubstepFit,
    calibrate,
    fit,
    predict,
    situation_of,
)
from tests.analysis.models import row, with_model
from tracer.errors import ColdtraceError

SIZES = ((0.5, 24), (4.0, 40), (7.0, 32), (13.0, 40), (9.0, 48), (2.0, 28))
COLD = Caches(page_cache=0.0)


def made(
    gb: float, layers: int, scale: float = 1.0, cold: bool = False, **more: str
) -> Observation:
    """A start by exact laws: 0.1 s/GB from memory, 1.5 s/GB from disk, 0.15 s a layer."""
    seconds = {
        "imports": 3.0 * scale,
        "load_weights": 0.1 * gb + (1.5 * gb if cold else 0.0),
        "dynamo_transform": (0.5 + 0.02 * 7 * layers) * scale,
        "engine_tokenizer": 0.3 * scale,
    }
    made_row = row(f"m{gb}", layers, gb, sum(seconds.values()), seconds, **more)
    return replace(made_row, caches=COLD) if cold else made_row


ROWS = [made(gb, layers) for gb, layers in SIZES]


def seconds(fitted: Fit, situation: Situation) -> dict[str, float]:
    return {each.id: each.seconds for each in predict(fitted, situation).substeps}


def test_known_coefficients_are_found() -> None:
    fitted = fit(ROWS + [made(gb, layers, cold=True) for gb, layers in SIZES])
    assert fitted.substeps["load_weights"].terms["weights"] == pytest.approx(0.1, rel=0.01)
    assert fitted.substeps["load_weights"].terms["read from disk"] == pytest.approx(1.5, rel=0.01)
    assert fitted.substeps["dynamo_transform"].terms["matrices"] == pytest.approx(0.02, rel=0.01)
    assert fitted.substeps["imports"].terms["constant"] == pytest.approx(3.0)
    unseen = made(30.0, 80, cold=True)
    assert predict(fitted, situation_of(unseen)).total_s == pytest.approx(unseen.total_s, rel=0.01)


def test_no_rate_is_negative() -> None:
    shrinking = [
        row(f"m{gb}", layers, gb, 10.0, {"load_weights": 5 - 0.1 * gb}) for gb, layers in SIZES
    ]
    for each in fit(shrinking).substeps.values():
        assert all(rate >= 0 for rate in each.terms.values())


def test_cold_and_warm_are_not_averaged() -> None:
    fitted = fit(ROWS + [made(gb, layers, cold=True) for gb, layers in SIZES])
    warm = made(7.0, 32)
    half = replace(warm, caches=Caches(page_cache=0.5))
    assert seconds(fitted, situation_of(warm))["load_weights"] == pytest.approx(0.7, rel=0.01)
    expected = 0.7 + 1.5 * 3.5
    assert seconds(fitted, situation_of(half))["load_weights"] == pytest.approx(expected, rel=0.01)


def test_a_familys_own_code_is_learned_and_only_in_its_substeps() -> None:
    slow = [
        replace(
            each,
            seconds={
                k: v * (1.1 if k == "dynamo_transform" else 1) for k, v in each.seconds.items()
            },
        )
        for each in (made(gb + 0.1, layers, family="slow") for gb, layers in SIZES)
    ]
    third = [made(gb + 0.2, layers, family="third") for gb, layers in SIZES]
    fitted = fit(ROWS + slow + third)
    families = fitted.substeps["dynamo_transform"].families
    assert families["slow"] - families["llama"] == pytest.approx(0.1, abs=0.02)
    assert fitted.substeps["engine_tokenizer"].families == {}
    stranger = with_model(ROWS[0], family="never seen")
    assert fitted.substeps["dynamo_transform"].factor(stranger.model) == 1


def test_one_start_in_a_family_is_not_believed_whole() -> None:
    """The evidence for a single outlier among noise is small, so is what it changes."""
    rows = [
        replace(
            each,
            seconds=each.seconds | {"dynamo_transform": each.seconds["dynamo_transform"] * noise},
        )
        for family in ("llama", "b", "c")
        for noise, each in zip(
            (0.9, 1.1, 0.92, 1.08, 1.1, 0.9),
            [made(gb, n, family=family) for gb, n in SIZES],
            strict=True,
        )
    ]
    odd = made(5.0, 32, family="odd")
    odd = replace(
        odd, seconds=odd.seconds | {"dynamo_transform": odd.seconds["dynamo_transform"] * 1.2}
    )
    effect = fit([*rows, odd]).substeps["dynamo_transform"].families["odd"]
    assert 0 <= effect < 0.15


def test_eager_means_neither_compilation_nor_graphs() -> None:
    parts = {"dynamo_transform": 5.0, "graph_capture": 1.0, "profile_run": 1.0}
    fitted = fit([row(f"m{gb}", layers, gb, 10.0, parts) for gb, layers in SIZES])
    model = ROWS[0].model
    eager = Situation(model, Serving(eager=True), Caches(compile=OFF))
    assert seconds(fitted, eager)["dynamo_transform"] == 0
    assert seconds(fitted, eager)["graph_capture"] == 0
    assert seconds(fitted, Situation(model))["dynamo_transform"] > 4


def test_a_compile_cache_miss_is_a_kind_of_its_own() -> None:
    miss = Caches(compile=MISS, kernels_cold=True)
    rows = [
        replace(
            row(f"m{gb}", n, gb, 10.0, {"graph_compile": 0.4 * n, "graph_cache_load": 0.0}),
            caches=miss,
        )
        for gb, n in SIZES
    ] + [
        row(f"h{gb}", n, gb, 10.0, {"graph_compile": 0.0, "graph_cache_load": 0.1 * n})
        for gb, n in SIZES
    ]
    fitted = fit(rows)
    situation = Situation(ROWS[2].model)
    assert seconds(fitted, situation)["graph_compile"] == pytest.approx(0, abs=0.01)
    assert seconds(fitted, situation)["graph_cache_load"] == pytest.approx(3.2, rel=0.02)
    cold = seconds(fitted, replace(situation, caches=miss))
    assert cold["graph_compile"] == pytest.approx(12.8, rel=0.02)
    assert cold["graph_cache_load"] == pytest.approx(0, abs=0.01)


def test_few_starts_scale_slopes_by_resource_and_set_constants() -> None:
    slow_node = [made(gb, layers, scale=2.0) for gb, layers in SIZES]
    scaled = calibrate(fit(ROWS), slow_node[:2])
    assert scaled.scales["cpu"] == pytest.approx(2.0, rel=0.1)
    assert scaled.scales["memory"] == pytest.approx(1.0, rel=0.1)
    for unseen in slow_node[2:]:
        assert predict(scaled, situation_of(unseen)).total_s == pytest.approx(
            unseen.total_s, rel=0.02
        )


def test_a_prior_decides_only_what_the_rows_cannot() -> None:
    same_model = [made(7.0, 32, scale=1.5)] * 5
    fitted = fit(same_model, calibrate(fit(ROWS), same_model))
    here = situation_of(same_model[0])
    assert predict(fitted, here).total_s == pytest.approx(same_model[0].total_s, rel=0.01)
    bigger = made(7.0, 64, scale=1.5)  # more layers than the rows have ever had
    assert predict(fitted, situation_of(bigger)).total_s == pytest.approx(bigger.total_s, rel=0.05)


def test_what_was_never_measured_is_said() -> None:
    fitted = fit(ROWS)
    cold = predict(fitted, situation_of(made(7.0, 32, cold=True)))
    unknown = {each.id: each.unknown for each in cold.substeps if each.unknown}
    assert unknown["load_weights"] == ("read from disk",)


def test_what_the_model_does_not_tell_is_said() -> None:
    prediction = predict(fit(ROWS), Situation(Model("m", "llama")))
    unknown = {name for each in prediction.substeps for name in each.unknown}
    assert {"weights", "matrices"} <= unknown
    assert prediction.total_s > 0  # the constants are known all the same


def test_speeds_that_are_told_replace_the_nodes() -> None:
    fitted = fit(ROWS + [made(gb, layers, cold=True) for gb, layers in SIZES])
    situation = situation_of(made(7.0, 32, cold=True))
    plain = predict(fitted, situation)
    fast = predict(fitted, situation, cpu_speed=2.0, disk_gbps=7.0)
    before = {each.id: each.seconds for each in plain.substeps}
    after = {each.id: each.seconds for each in fast.substeps}
    assert after["imports"] == pytest.approx(before["imports"] / 2)
    assert after["load_weights"] == pytest.approx(0.7 + 1.0, rel=0.01)


def test_the_most_sensitive_input_comes_first() -> None:
    fitted = fit(ROWS + [made(gb, layers, cold=True) for gb, layers in SIZES])
    prediction = predict(fitted, situation_of(made(13.0, 40, cold=True)))
    found = prediction.sensitivities()
    assert next(iter(found)) == "weight bytes"
    assert found["weight bytes"] == pytest.approx(1.6 * 13.0 / 100, rel=0.02)
    assert list(found.values()) == sorted(found.values(), reverse=True)


def test_ranks_share_the_weights() -> None:
    fitted = fit(ROWS)
    one = seconds(fitted, Situation(ROWS[3].model))["load_weights"]
    two = seconds(fitted, Situation(ROWS[3].model, Serving(tp=2)))["load_weights"]
    assert two == pytest.approx(one / 2)


def test_a_fit_survives_json() -> None:
    fitted = fit(ROWS)
    assert Fit.from_json(json.loads(json.dumps(fitted.to_json()))) == fitted
    with pytest.raises(ColdtraceError, match="can't be read"):
        Fit.from_json({"substeps": {"imports": {"terms": []}}})


def test_nothing_is_learned_from_nothing() -> None:
    with pytest.raises(ColdtraceError, match="no starts"):
        fit([])


def test_every_term_has_a_name_of_its_own() -> None:
    for model in SUBSTEPS:
        names = [term.name for term in model.terms]
        assert len(set(names)) == len(names)
    assert SubstepFit({}).factor(Model("m", None)) == 1
