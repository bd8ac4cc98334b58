"""Warm pools: the formula, its limits, and what Kubernetes takes."""

from __future__ import annotations

import pytest

from analysis.planning import Plan, config_map, plan
from tracer.errors import UsageError


def made(rate: float = 0.1, burst: float = 2.0, reuse: float | None = None) -> Plan:
    return plan("m", 40.0, 45.0, 60.0, rate, burst, reuse)


@pytest.mark.parametrize(
    ("rate", "burst", "reuse", "pool"),
    [
        (0.1, 2.0, None, 9),
        (0.1, 2.0, 30.0, 6),
        (0.1, 2.0, 300.0, 9),
        (0.1, 1.0, None, 5),
        (1e-4, 1.0, None, 1),
    ],
)
def test_the_pool(rate: float, burst: float, reuse: float | None, pool: int) -> None:
    assert made(rate, burst, reuse).pool == pool


def test_the_formula_is_filled_in() -> None:
    assert made(reuse=30.0).formula == "ceil(0.1/s x 2 x min(45.0 s, 30 s)) = 6"
    assert made().formula == "ceil(0.1/s x 2 x 45.0 s) = 9"


def test_the_autoscaler_gets_a_budget() -> None:
    budget = made().to_json()["autoscaler"]
    assert budget == {
        "scale_ahead_s": 45.0,
        "startup_probe_period_s": 10,
        "startup_probe_failures": 6,
    }


@pytest.mark.parametrize(
    ("rate", "burst", "reuse"),
    [
        (0.0, 1.0, None),
        (float("nan"), 1.0, None),
        (1.0, 0.5, None),
        (1.0, 1.0, 0.0),
        (1e9, 1.0, None),
    ],
)
def test_senseless_numbers_are_refused(rate: float, burst: float, reuse: float | None) -> None:
    with pytest.raises(UsageError):
        made(rate, burst, reuse)


def test_a_config_map_holds_text_only() -> None:
    text = config_map(plan('a "b": c', 40.0, 45.0, 60.0, 0.1, 2.0, None), "start-up")
    lines = text.splitlines()
    assert lines[:5] == [
        "apiVersion: v1",
        "kind: ConfigMap",
        "metadata:",
        '  name: "start-up"',
        "data:",
    ]
    assert '  warm-pool: "9"' in lines and '  model: "a \\"b\\": c"' in lines
    assert all(line.partition(": ")[2].startswith('"') for line in lines[5:])
