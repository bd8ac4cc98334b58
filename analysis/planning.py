"""How many warm instances to keep, and how early to scale: from a start's duration.

Demands for a new instance come at `arrival_rate` a second, in bursts `burst` times
that. A demand takes a warm instance, and its place stays empty until another start is
over or an instance is given back, whichever is sooner. By Little's law the places that
are empty at once, and so the instances to keep, are

    pool = ceil(arrival_rate x burst x min(cold start, reuse time))
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from tracer.errors import UsageError

PROBE_PERIOD_S = 10
MAX_POOL = 1_000_000


@dataclass(frozen=True, slots=True)
class Plan:
    """Seconds throughout; `cold_start_s` is what to reckon with, the interval's upper end."""

    model: str
    arrival_rate: float
    burst: float
    predicted_s: float
    cold_start_s: float
    slo_s: float
    reuse_s: float | None

    @property
    def empty_s(self) -> float:
        """How long a place stays empty."""
        return self.cold_start_s if self.reuse_s is None else min(self.cold_start_s, self.reuse_s)

    @property
    def pool(self) -> int:
        """Warm instances to keep."""
        return math.ceil(round(self.arrival_rate * self.burst * self.empty_s, 9))

    @property
    def formula(self) -> str:
        """The pool's formula, filled in."""
        reuse = "" if self.reuse_s is None else f", {self.reuse_s:g} s"
        empty = f"min({self.cold_start_s:.1f} s{reuse})" if reuse else f"{self.cold_start_s:.1f} s"
        return f"ceil({self.arrival_rate:g}/s x {self.burst:g} x {empty}) = {self.pool}"

    @property
    def probe_failures(self) -> int:
        """Failures of a start-up probe, one every PROBE_PERIOD_S, before the SLO is broken."""
        return math.ceil(self.slo_s / PROBE_PERIOD_S)

    def to_json(self) -> dict[str, Any]:
        """All of it, with what follows."""
        return {
            **asdict(self),
            "warm_pool": self.pool,
            "formula": self.formula,
            "autoscaler": {
                "scale_ahead_s": self.cold_start_s,
                "startup_probe_period_s": PROBE_PERIOD_S,
                "startup_probe_failures": self.probe_failures,
            },
        }


def plan(
    model: str,
    predicted_s: float,
    cold_start_s: float,
    slo_s: float,
    arrival_rate: float,
    burst: float,
    reuse_s: float | None,
) -> Plan:
    """Check the numbers and put them together; raise UsageError for senseless ones."""
    for name, value in (("arrival rate", arrival_rate), ("reuse time", reuse_s)):
        if value is not None and not 0 < value < math.inf:
            raise UsageError(f"the {name} has to be a number above 0, not {value}")
    if not 1 <= burst < math.inf:
        raise UsageError(f"the burst factor has to be at least 1 (no bursts), not {burst}")
    made = Plan(model, arrival_rate, burst, predicted_s, cold_start_s, slo_s, reuse_s)
    if arrival_rate * burst * made.empty_s > MAX_POOL:
        raise UsageError(f"that takes more than {MAX_POOL} warm instances; check the arrival rate")
    return made


def config_map(plan: Plan, name: str) -> str:
    """A Kubernetes ConfigMap in YAML; all its values are strings, as there they have to be."""
    values: Mapping[str, object] = {
        "model": plan.model,
        "warm-pool": plan.pool,
        "cold-start-predicted-seconds": f"{plan.predicted_s:.1f}",
        "cold-start-seconds": f"{plan.cold_start_s:.1f}",
        "cold-start-slo-seconds": f"{plan.slo_s:.1f}",
        "scale-ahead-seconds": math.ceil(plan.cold_start_s),
        "startup-probe-period-seconds": PROBE_PERIOD_S,
        "startup-probe-failure-threshold": plan.probe_failures,
        "formula": plan.formula,
    }
    lines = ["apiVersion: v1", "kind: ConfigMap", "metadata:", f"  name: {json.dumps(name)}"]
    lines += ["data:", *(f"  {key}: {json.dumps(str(value))}" for key, value in values.items())]
    return "\n".join(lines) + "\n"
