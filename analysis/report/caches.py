"""How warm the caches were, as text."""

from __future__ import annotations

from analysis.report.cells import in_bytes
from analysis.result import CacheState, Result
from tracer.text import escape


def caches_line(result: Result) -> str:
    """All caches in one paragraph: the state of each, and what shows it."""
    return f"Caches: {'; '.join(map(_told, result.caches))}."


def _told(cache: CacheState) -> str:
    parts = [escape(cache.detail)]
    if cache.held_bytes is not None and cache.size_bytes:
        share = cache.held_bytes / cache.size_bytes
        parts.insert(0, f"{share:.0%} of {in_bytes(cache.size_bytes)} held")
    return f"{cache.title.lower()} {cache.state} ({', '.join(parts)})"
