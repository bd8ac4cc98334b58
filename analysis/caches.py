"""How warm the caches were that a start found: the page cache, and what the engine keeps.

How much of the model's files the page cache held was looked at before the start. Of
the engine's own caches the start tells: by what it did again, and what it loaded.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from analysis.result import CacheState
from analysis.signature import CacheSignature, Signatures
from tracer.trace import CachedFile, Trace

WARM, PARTLY, COLD, UNUSED, UNKNOWN = "warm", "partly warm", "cold", "unused", "unknown"
ALL, NOTHING = 0.95, 0.05
"""Shares of a file from which it counts as cached, and up to which as not."""


def caches_of(
    trace: Trace,
    signatures: Signatures,
    substeps_ns: Mapping[str, int],
    roles: frozenset[str],
    end_ns: int,
    is_engine: bool,
) -> tuple[CacheState, ...]:
    """The page cache by class of file, then each cache of the engine.

    `substeps_ns` is what each sub-step took, `roles` what the processes of the start
    were, which ended at `end_ns`. Another program than the engine has no such caches.
    """
    opened: dict[str, int] = {}
    for file in trace.files():
        kind = signatures.file_class(file.path)
        if kind is not None and file.ts_ns < end_ns:
            opened[kind.id] = opened.get(kind.id, 0) + 1
    own = signatures.caches if is_engine else ()
    return (
        *_page_cache(trace, signatures),
        *(_cache(each, substeps_ns, roles, opened.get(each.files, 0)) for each in own),
    )


# The page cache ---------------------------------------------------------------------


def _page_cache(trace: Trace, signatures: Signatures) -> Iterator[CacheState]:
    by_class: dict[str, list[CachedFile]] = {}
    for file in trace.cached_files():
        kind = signatures.file_class(file.path)
        if kind is not None:
            by_class.setdefault(kind.id, []).append(file)
    if not by_class:
        yield CacheState("page_cache", "Page cache", UNKNOWN, _why_unknown(trace), None, None)
    for kind in signatures.files:
        if kind.id in by_class:
            title = f"Page cache: {kind.title.lower()}"
            yield _held(f"page_cache.{kind.id}", title, by_class[kind.id])


def _held(id_: str, title: str, files: list[CachedFile]) -> CacheState:
    systems = ", ".join(dict.fromkeys(file.file_system for file in files if file.file_system))
    where = f" on {systems}" if systems else ""
    number = "1 file" if len(files) == 1 else f"{len(files)} files"
    size = sum(file.size_bytes for file in files)
    if any(file.cached_bytes is None for file in files):
        detail = f"{number}{where}, of which the kernel doesn't tell what is cached"
        return CacheState(id_, title, UNKNOWN, detail, None, size)
    held = sum(file.cached_bytes or 0 for file in files)
    state = PARTLY
    if held >= ALL * size:
        state = WARM
    elif held <= NOTHING * size:
        state = COLD
    return CacheState(id_, title, state, f"{number}{where}", held, size)


def _why_unknown(trace: Trace) -> str:
    if trace.meta["seen_from_ns"] > trace.meta["begin_ns"]:
        return "the tracer came when the start was under way"
    return "no file was found, before the start, of a model that the command names"


# The engine's caches ------------------------------------------------------------------


def _cache(
    cache: CacheSignature, substeps_ns: Mapping[str, int], roles: frozenset[str], opened: int
) -> CacheState:
    missed_ns = sum(substeps_ns.get(substep, 0) for substep in cache.missed)
    hit_ns = sum(substeps_ns.get(substep, 0) for substep in cache.hit)
    evidence = []
    if not roles.isdisjoint(cache.missed_roles) or (missed_ns > hit_ns and not cache.missed_roles):
        state = COLD
        evidence.append(f"{cache.missed_as} for {missed_ns / 1e9:.3f} s")
    elif hit_ns or opened or missed_ns:
        state = WARM
    else:
        state = UNUSED
        evidence.append("nothing was loaded from it or made again")
    if hit_ns:
        evidence.append(f"loaded in {hit_ns / 1e9:.3f} s")
    if opened:
        evidence.append("1 file opened" if opened == 1 else f"{opened} files opened")
    return CacheState(cache.id, cache.title, state, ", ".join(evidence), None, None)
