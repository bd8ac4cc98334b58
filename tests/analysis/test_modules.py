"""The import tree: exact nesting, own times that add up, names from paths."""

from __future__ import annotations

from pathlib import Path

import pytest

from analysis.modules import (
    ELSEWHERE,
    STANDARD_LIBRARY,
    ModuleNode,
    module_name,
    package_name,
    time_by_package,
)
from tests.analysis.synthetic import MS, Story

LIBRARY = "/venv/lib/python3.12/site-packages"


def outline(nodes: list[ModuleNode]) -> list[object]:
    return [
        (node.name, node.total_ns / MS, node.self_ns / MS, outline(node.children)) for node in nodes
    ]


def test_bodies_nest_and_own_times_add_up(tmp_path: Path) -> None:
    story = Story()
    # A body is told when it returns, so inner ones come first.
    story.body(20, 30, f"{LIBRARY}/big/a.py:<module>", depth=2)
    story.body(40, 45, f"{LIBRARY}/small.py:<module>", depth=2)
    story.body(10, 60, f"{LIBRARY}/big/__init__.py:<module>", depth=1)
    story.body(70, 75, "/usr/lib/python3.12/json/decoder.py:<module>", depth=1)
    start = story.start(tmp_path, 100)
    assert outline(start.imports[1]) == [
        ("big", 50, 35, [("big.a", 10, 10, []), ("small", 5, 5, [])]),
        ("json.decoder", 5, 5, []),
    ]
    packages = {name: ns / MS for name, ns in time_by_package(start.imports[1]).items()}
    assert packages == {"big": 45, "small": 5, STANDARD_LIBRARY: 5}
    assert sum(packages.values()) == 55


def test_programs_strings_and_generated_code_give_way_to_what_they_import(tmp_path: Path) -> None:
    story = Story(("python3", "run.py", "toy", "serve"))
    story.body(1, None, "/home/me/run.py:<module>")
    story.body(5, 20, "<string>:<module>", depth=1)
    story.body(6, 10, f"{LIBRARY}/big/__init__.py:<module>", depth=2)
    story.body(30, 50, "/home/me/weights/gen.safetensors:<module>", depth=1)
    start = story.start(tmp_path, 100)
    assert outline(start.imports[1]) == [("big", 4, 4, [])]


def test_a_module_that_runs_as_the_program_is_no_import(tmp_path: Path) -> None:
    story = Story(("python3", "-m", "big.tool"))
    story.body(1, 90, f"{LIBRARY}/big/tool.py:<module>")
    story.body(0.5, 0.9, f"{LIBRARY}/big/__init__.py:<module>")
    story.body(5, 7, f"{LIBRARY}/small.py:<module>", depth=1)
    start = story.start(tmp_path, 100)
    assert [node.name for node in start.imports[1]] == ["big", "small"]


def test_threads_nest_apart(tmp_path: Path) -> None:
    story = Story()
    story.body(10, 40, f"{LIBRARY}/big/__init__.py:<module>")
    story.body(15, 60, f"{LIBRARY}/small.py:<module>", tid=777)
    start = story.start(tmp_path, 100)
    assert [(node.name, node.total_ns / MS) for node in start.imports[1]] == [
        ("big", 30),
        ("small", 45),
    ]


def test_a_body_ends_with_the_start_and_within_its_outer_one(tmp_path: Path) -> None:
    story = Story()
    story.body(10, 50, f"{LIBRARY}/big/__init__.py:<module>")
    story.body(20, 70, f"{LIBRARY}/big/a.py:<module>", depth=1)
    story.body(60, None, f"{LIBRARY}/small.py:<module>")
    story.body(200, 210, f"{LIBRARY}/late.py:<module>")
    start = story.start(tmp_path, 100)
    assert outline(start.imports[1]) == [
        ("big", 40, 10, [("big.a", 30, 30, [])]),
        ("small", 40, 40, []),
    ]


@pytest.mark.parametrize(
    ("file", "module", "package"),
    [
        (f"{LIBRARY}/torch/_C/__init__.py", "torch._C", "torch"),
        ("/usr/lib/python3/dist-packages/yaml/nodes.py", "yaml.nodes", "yaml"),
        ("/usr/lib/python3.11/enum.py", "enum", STANDARD_LIBRARY),
        ("/usr/local/lib/python3.14/asyncio/__init__.py", "asyncio", STANDARD_LIBRARY),
        ("<frozen importlib._bootstrap>", "importlib._bootstrap", STANDARD_LIBRARY),
        ("/home/me/work/app.py", "app", ELSEWHERE),
        ("", "", ELSEWHERE),
    ],
)
def test_names_from_paths(file: str, module: str, package: str) -> None:
    assert (module_name(file), package_name(file)) == (module, package)
