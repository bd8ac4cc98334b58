"""The result as JSON, stable from release to release: see README for the fields."""

from __future__ import annotations

import json
from typing import Any

from analysis.result import (
    UNATTRIBUTED,
    Attribution,
    CacheState,
    Cores,
    Failure,
    Limits,
    Link,
    ProcessLife,
    Result,
    StepTime,
    TimeShares,
)

SCHEMA = 1


def to_json(result: Result) -> str:
    """One JSON object, indented; times in seconds since the start, exact to the ns."""
    return json.dumps(_result(result), indent=2)


def _result(result: Result) -> dict[str, Any]:
    overhead = result.overhead
    return {
        "schema": SCHEMA,
        "outcome": result.outcome,
        "engine": result.engine,
        "command": list(result.command),
        "wall_s": _seconds(result.wall_ns),
        "steps": [_step(step, result.attribution) for step in result.steps],
        "unattributed_s": _seconds(result.unattributed_ns),
        "missed_s": _seconds(result.missed_ns),
        "lost_events": result.lost_events,
        "lost": dict(result.lost),
        "processes": [_process(life, result) for life in result.processes],
        "failure": None if result.failure is None else _failure(result.failure),
        "caches": [_cache(cache) for cache in result.caches],
        "limits": None if result.limits is None else _limits(result.limits),
        "versions": dict(result.versions),
        "overhead": {
            "recorder_cpu_s": overhead.recorder_cpu_s,
            "recorder_peak_rss_bytes": overhead.recorder_peak_rss_bytes,
            "observed_s": _seconds(overhead.observed_cost_ns),
        },
        "sources": [
            {"name": source.name, "state": source.state, "reason": source.reason}
            for source in result.sources
        ],
        "notes": list(result.notes),
        "attribution": _attribution(result.attribution),
        "critical_path": [_link(link, result) for link in result.critical_path],
    }


def _step(step: StepTime, attribution: Attribution) -> dict[str, Any]:
    return {
        "id": step.id,
        "seconds": _seconds(step.duration_ns),
        "happened": step.happened,
        "why_not": step.why_not,
        "substeps": [
            {"id": substep.id, "seconds": _seconds(substep.duration_ns)}
            | _shares(attribution.substeps.get(substep.id))
            for substep in step.substeps
        ],
    }


def _attribution(attribution: Attribution) -> dict[str, Any]:
    """The sub-steps' own are with the steps."""
    return {
        **_shares(attribution.whole),
        "unattributed": _shares(attribution.substeps.get(UNATTRIBUTED)),
        "cores": None if attribution.cores is None else _cores(attribution.cores),
        "whys": list(attribution.whys),
    }


def _shares(times: TimeShares | None) -> dict[str, Any]:
    """The verdict and what it is made of; what took no time has neither."""
    if times is None or not times.shares:
        return {"bound": None, "shares": []}
    shares = [
        {"kind": share.kind, "what": share.what, "seconds": _seconds(share.duration_ns)}
        for share in times.shares
    ]
    return {"bound": times.bound, "shares": shares}


def _cores(cores: Cores) -> dict[str, float]:
    return {
        "none_s": _seconds(cores.none_ns),
        "one_s": _seconds(cores.one_ns),
        "several_s": _seconds(cores.several_ns),
        "busy_s": _seconds(cores.busy_ns),
    }


def _link(link: Link, result: Result) -> dict[str, Any]:
    pids = {life.id: life.pid for life in result.processes}
    return {
        "start_s": _seconds(link.start_ns - result.start_ns),
        "end_s": _seconds(link.end_ns - result.start_ns),
        "pid": pids[link.process_id],
        "tid": link.tid,
        "pids": [pids[process_id] for process_id in link.process_ids],
        "substep": link.substep,
        "handover": link.handover,
        **_shares(link.times),
        "beside": [
            {
                "pid": pids[beside.process_id],
                "busy_s": _seconds(beside.busy_ns),
                "slack_s": _seconds(beside.slack_ns),
            }
            for beside in link.beside
        ],
    }


def _process(life: ProcessLife, result: Result) -> dict[str, Any]:
    end_ns = life.end_ns
    return {
        "pid": life.pid,
        "parent_pid": life.parent_pid,
        "role": life.role,
        "program": life.program,
        "start_s": _seconds(life.start_ns - result.start_ns),
        "end_s": None if end_ns is None else _seconds(end_ns - result.start_ns),
        "wait_status": life.wait_status,
    }


def _limits(limits: Limits) -> dict[str, Any]:
    by_substep = {
        "throttled_s": limits.throttled_ns,
        "memory_pressure_s": limits.memory_pressure_ns,
    }
    return {
        "cpus": limits.cpus,
        "allowed_cpus": limits.allowed_cpus,
        "quota_cpus": limits.quota_cpus,
        "cgroup": limits.cgroup,
        **{
            name: {substep: _seconds(time_ns) for substep, time_ns in times_ns.items()}
            for name, times_ns in by_substep.items()
        },
        "others_cores": limits.others_cores,
        "stolen_cores": limits.stolen_cores,
        "numa_nodes": limits.numa_nodes,
        "lowest_hz": limits.lowest_hz,
        "highest_hz": limits.highest_hz,
    }


def _cache(cache: CacheState) -> dict[str, Any]:
    return {
        "id": cache.id,
        "state": cache.state,
        "detail": cache.detail,
        "held_bytes": cache.held_bytes,
        "size_bytes": cache.size_bytes,
    }


def _failure(failure: Failure) -> dict[str, Any]:
    return {
        "step": failure.step,
        "substep": failure.substep,
        "pid": failure.pid,
        "role": failure.role,
        "function": failure.function,
        "engine_function": failure.engine_function,
        "wait_status": failure.wait_status,
        "root_wait_status": failure.root_wait_status,
    }


def _seconds(duration_ns: int) -> float:
    return round(duration_ns / 1e9, 9)
