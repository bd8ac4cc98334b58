"""How warm the caches were: by what was found before the start, and by what was done again."""

from __future__ import annotations

from pathlib import Path

import pytest

from analysis.report.caches import caches_line
from analysis.result import CacheState
from analysis.signature import Signatures
from probes.events import FileCached, FileUsed, ProcessExecuted, ProcessForked, ProcessId
from tests.analysis.synthetic import BEGIN_NS, MS, ROOT, SIGNATURES, Story, at

CACHES = [
    {
        "id": "graphs",
        "title": "Graphs",
        "files": "tokens",
        "missed_as": "made",
        "missed": ["trial"],
        "hit": ["config"],
    },
    {
        "id": "infos",
        "title": "Infos",
        "files": "none",
        "missed_as": "inspected",
        "missed": ["inspection"],
        "missed_roles": ["inspector"],
    },
]
TOY = Signatures(SIGNATURES | {"cache": CACHES})


def cached(path: str, size: int, held: int | None, system: str = "ext4") -> FileCached:
    return FileCached(BEGIN_NS - MS, path, size, held, system, 1, len(path))


def states(folder: Path, story: Story, **meta: object) -> dict[str, CacheState]:
    start = story.start(folder, 100, signatures=TOY, **meta)
    return {cache.id: cache for cache in start.result.caches}


@pytest.mark.parametrize(
    ("held", "state"),
    [(1000, "warm"), (950, "warm"), (500, "partly warm"), (50, "cold"), (0, "cold")],
)
def test_the_page_cache_by_class_of_file(tmp_path: Path, held: int, state: str) -> None:
    story = Story().sample(10, "main")
    story.events += [
        cached("/m/a.safetensors", 600, min(held, 600)),
        cached("/m/b.safetensors", 400, max(held - 600, 0), "overlay"),
        cached("/m/tokenizer.json", 50, 50),
        cached("/m/notes", 70, 0),
    ]
    told = states(tmp_path, story)
    detail = "2 files on ext4, overlay"
    assert told["page_cache.weights"] == CacheState(
        "page_cache.weights", "Page cache: weights", state, detail, held, 1000
    )
    assert (told["page_cache.tokens"].state, told["page_cache.tokens"].detail) == (
        "warm", "1 file on ext4"
    )  # fmt: skip


def test_a_file_system_that_does_not_tell(tmp_path: Path) -> None:
    story = Story().sample(10, "main")
    story.events.append(cached("/m/a.safetensors", 600, None, "fuse.s3"))
    told = states(tmp_path, story)["page_cache.weights"]
    assert (told.state, told.held_bytes, told.size_bytes) == ("unknown", None, 600)
    assert told.detail == "1 file on fuse.s3, of which the kernel doesn't tell what is cached"


def test_why_the_page_cache_is_unknown(tmp_path: Path) -> None:
    story = Story().sample(10, "main")
    told = states(tmp_path, story)["page_cache"]
    assert told.state == "unknown" and "of a model that the command names" in told.detail
    (tmp_path / "start.coldtrace").unlink()
    told = states(tmp_path, story, seen_from_ns=at(50))["page_cache"]
    assert told.detail == "the tracer came when the start was under way"


@pytest.mark.parametrize(
    ("stacks", "opens", "state", "detail"),
    [
        ("trial trial config", 2, "cold", "made for 0.065 s, loaded in 0.035 s, 2 files opened"),
        ("trial config config", 1, "warm", "loaded in 0.065 s, 1 file opened"),
        ("load load load", 0, "unused", "nothing was loaded from it or made again"),
        ("load load load", 1, "warm", "1 file opened"),
    ],
)
def test_what_was_done_again_tells_of_a_cache(
    tmp_path: Path, stacks: str, opens: int, state: str, detail: str
) -> None:
    story = Story()
    for index in range(10):
        story.sample(index * 10, f"main {stacks.split()[index * 3 // 10]}")
    for ms in range(opens):
        used = FileUsed(at(ms), None, ROOT, ROOT.pid, "/c/tokenizer.json", 5, 5, 0)
        story.events.append(used)
    told = states(tmp_path, story)["graphs"]
    assert (told.state, told.detail, told.held_bytes) == (state, detail, None)


def test_a_process_that_was_made_to_look_again(tmp_path: Path) -> None:
    story = Story().sample(10, "main").sample(60, "main wait_for_inspector")
    child = ProcessId(200, at(20))
    story.events += [
        ProcessForked(at(20), ROOT, child),
        ProcessExecuted(at(21), child, "python", ("python", "-m", "toy.inspect"), False),
    ]
    assert states(tmp_path, story)["infos"].state == "cold"


def test_another_program_has_none_of_the_engines_caches(tmp_path: Path) -> None:
    story = Story(("sleep", "1")).sample(10, "helper")
    assert list(states(tmp_path, story)) == ["page_cache"]


def test_one_paragraph_tells_all(tmp_path: Path) -> None:
    story = Story().sample(10, "main config")
    story.events.append(cached("/m/a.safetensors", 1_000_000, 250_000, "\x1b[31mfs"))
    result = story.start(tmp_path, 100, signatures=TOY).result
    assert caches_line(result) == (
        "Caches: page cache: weights partly warm (25% of 1.0 MB held, 1 file on \\x1b[31mfs);"
        " graphs warm (loaded in 0.090 s); infos unused (nothing was loaded from it or made again)."
    )
