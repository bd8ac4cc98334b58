"""The page: one file that fetches nothing, obeys nothing it shows, and can be looked at."""

from __future__ import annotations

import json
import os
import re
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from analysis.report import lines
from analysis.report.html import to_html
from analysis.report.page import page
from analysis.start import Start
from probes.events import BUCKET_NS, Reading, ThreadRan
from tests.analysis.chromium import chromium
from tests.analysis.hostile import END_MS, HOSTILE, hostile_story
from tests.analysis.synthetic import ROOT, Story, at
from tracer.text import escape

MS = 1000  # µs
GPU = [Reading(at(1000 + 500 * n), "gpu_busy_percent", "gpu0", 0.0) for n in range(3)]


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Start:
    return hostile_story().start(tmp_path_factory.mktemp("html"), END_MS)


@pytest.fixture(scope="module")
def shown(start: Start) -> dict[str, Any]:
    """What the page shows, as it reads it from itself."""
    _, _, rest = to_html(start).partition('<script id="data" type="application/json">')
    text, _, _ = rest.partition("</script>")
    data: dict[str, Any] = json.loads(text)
    return data


class Elements(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def elements(text: str) -> list[tuple[str, dict[str, str | None]]]:
    parser = Elements()
    parser.feed(text)
    return parser.found


def test_nothing_of_the_trace_becomes_markup(start: Start) -> None:
    found = elements(to_html(start))
    assert [tag for tag, _ in found].count("script") == 2
    assert not [tag for tag, _ in found if tag in ("img", "iframe", "object", "a")]
    assert not [attributes for _, attributes in found if "onerror" in attributes]


def test_nothing_is_fetched_and_nothing_else_may_run(start: Start) -> None:
    text = to_html(start)
    for _, attributes in elements(text):
        assert (attributes.get("src"), attributes.get("href")) in ((None, None), (None, "data:,"))
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]*)"', text)
    assert policy.startswith("default-src 'none'; img-src data:; script-src 'sha256-")
    assert "unsafe" not in policy
    assert "http" not in policy


def test_the_locale_changes_no_page(tmp_path: Path) -> None:
    trace = hostile_story().write(tmp_path, END_MS)
    ascii_only = os.environ | {"LC_ALL": "POSIX", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    code = "import sys; from analysis.commands import analyze; from pathlib import Path\n"
    code += "analyze(sys.argv[1], outputs={'html': Path(sys.argv[2])})"
    page = tmp_path / "page.html"
    subprocess.run([sys.executable, "-c", code, trace, page], env=ascii_only, check=True)
    assert page.read_text("utf-8") == to_html(Start.open(trace))


def test_every_text_is_safe_to_show(shown: dict[str, Any]) -> None:
    def texts(value: object) -> Iterator[str]:
        if isinstance(value, str):
            yield value
        elif isinstance(value, dict):
            yield from (text for each in value.values() for text in texts(each))
        elif isinstance(value, list):
            yield from (text for each in value for text in texts(each))

    everything = list(texts(shown))
    assert any("</script><script>" in text for text in everything)
    assert not [
        text for text in everything if re.search("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202e]", text)
    ]


def test_the_critical_path_has_no_gap_and_adds_up(shown: dict[str, Any]) -> None:
    path = shown["path"]
    assert (path[0][0], path[-1][1]) == (0, END_MS * MS)
    assert all(before[1] == after[0] for before, after in pairwise(path))
    parts = [sub["time"] for step in shown["steps"] for sub in step["substeps"]]
    assert sum(parts) + shown["unattributed"] == END_MS * MS
    assert sum(row[3] for row in shown["flames"]["path"]) == END_MS * MS


def test_cores_are_told_bucket_by_bucket(shown: dict[str, Any]) -> None:
    first, second = shown["cores"]["cores"]
    assert (first["cpu"], first["busy"][:7]) == (0, [750] * 6 + [0])
    assert (second["cpu"], second["busy"][5:8]) == (1, [0, 750, 750])
    titles = [process["title"] for process in shown["processes"]]
    assert [titles[owner] for owner in (first["owners"][0], second["owners"][6])] == [
        "Server",
        "Engine",
    ]
    assert [group["title"] for group in shown["cores"]["groups"]] == ["Engine", "Server"]


def test_a_thread_is_told_by_what_it_did(shown: dict[str, Any]) -> None:
    kinds = [kind for kind, _ in shown["kinds"]]
    path, server, engine = shown["threads"]["rows"]
    assert (path["title"], server["title"]) == ("The critical path", "Server (pid 100)")
    assert server["kinds"][str(kinds.index("lock"))][10] == 1000
    assert engine["kinds"][str(kinds.index("disk"))][7] == 190  # woken a millisecond early
    for row in shown["threads"]["rows"]:
        assert max(map(sum, zip(*row["kinds"].values(), strict=True))) <= 1001


def test_a_file_is_told_with_what_came_from_disk(shown: dict[str, Any]) -> None:
    (file,) = shown["files"]["rows"]
    assert file[5:10] == [2_000_000, 500, 10, 1_000_000, 1_000_000]


def test_waits_and_the_network_are_told(shown: dict[str, Any]) -> None:
    kinds = [kind for kind, _ in shown["kinds"]]
    longest = shown["waits"][0]
    assert (kinds[longest[2]], longest[4:]) == ("lock", [1, 2180 * MS, 2180 * MS, MS])
    lookup, connect = shown["network"]
    assert (lookup[1], lookup[3:]) == ("look-up", [630 * MS, 10 * MS, 0])
    assert connect[1:] == ["connect", "192.0.2.1 port 443", 640 * MS, 20 * MS, 111]


def test_samples_on_a_core_are_told_by_place(shown: dict[str, Any]) -> None:
    counts: dict[str, int] = {}
    places = [*shown["flames"]["places"], "Python or unknown"]
    for *_, count, place in shown["flames"]["cpu"]:
        counts[places[place]] = counts.get(places[place], 0) + count
    assert counts == {escape(HOSTILE): 50, "kernel:read": 50, "Python or unknown": 103}


def test_rates_are_the_growth_of_counters(shown: dict[str, Any]) -> None:
    by_title = {line["title"]: line for line in shown["lines"]}
    machine = by_title["Whole machine, busy"]
    assert (machine["unit"], machine["values"][:2]) == ("cores", [0.9, 0.9])
    disk = by_title["Disk reads"]
    assert (disk["unit"], disk["subject"]) == ("MB/s", "device 8:1")
    assert disk["values"][:4] == [0, 40, 80, 0]


def test_a_gpu_that_idles_has_a_line_and_one_that_is_not_there_none(tmp_path: Path) -> None:
    assert not [
        line for line in lines.lines_of(Story().start(tmp_path, 100)) if "GPU" in line.title
    ]
    story = hostile_story()
    story.events += GPU
    (tmp_path / "gpu").mkdir()
    found = lines.lines_of(story.start(tmp_path / "gpu", END_MS))
    (gpu,) = [line for line in found if "GPU" in line.title]
    assert (gpu.title, gpu.unit, gpu.subject, gpu.values) == ("GPU busy", "%", "gpu0", [0, 0, 0])


def test_a_very_long_start_has_wider_buckets(tmp_path: Path) -> None:
    hour_ms = 3_600_000
    story = Story()
    for minute in range(60):
        ts_ns = at(minute * 60_000) // BUCKET_NS * BUCKET_NS
        story.events.append(ThreadRan(ts_ns, ROOT, 100, minute % 2, BUCKET_NS))
    data = page(story.start(tmp_path, hour_ms))
    cores = data["cores"]
    assert cores["bucket"] == 1300 * MS
    assert len(cores["cores"][0]["busy"]) <= 3000
    assert sum(map(sum, (core["busy"] for core in cores["cores"]))) == 60 * 77  # of 1.3 s
    for row in data["threads"]["rows"]:
        assert row["kinds"]
        assert max(map(len, row["kinds"].values())) <= 3000


def test_what_nobody_saw_is_absent(tmp_path: Path) -> None:
    data = page(Story().sample(10, "main config").start(tmp_path, 100))
    assert (data["cores"], data["threads"], data["waits"], data["lines"]) == (None, None, [], [])
    assert data["files"] == {"others": 0, "rows": []}


def test_a_long_start_makes_a_small_page_soon(tmp_path: Path) -> None:
    """90 s of three processes at 99 Hz with stacks of 60, 20,000 module bodies, 16 cores."""
    story = Story().sample(1, "main wait_for_engine")
    engine = story.fork(2, 200)
    deep = " ".join(
        f"/lib/python3.11/site-packages/p{n % 9}/m{n}.py:function_{n}" for n in range(60)
    )
    for index in range(9000):
        story.sample(10 + 10 * index, f"engine load {deep} /lib/x.py:f{index % 3000}", engine)
        story.sample(10 + 10 * index, "main wait_for_engine")
    for index in range(20_000):
        name = f"/lib/python3.11/site-packages/package/module_{index}.py:<module>"
        story.body(5 + 4.4 * index, 9 + 4.4 * index, name, process=engine)
    hostile = hostile_story()
    story.events += [event for event in hostile.events if isinstance(event, Reading)]
    path = story.write(tmp_path, 90_100)
    began_s = time.process_time()
    text = to_html(Start.open(path))
    assert time.process_time() - began_s < 3
    assert len(text.encode()) < 6_000_000
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < 2_000_000  # kB


# In a browser ---------------------------------------------------------------------

PANELS = (
    "timeline",
    "steps",
    "path",
    "flame",
    "waits",
    "imports",
    "files",
    "network",
    "observation",
)
BLANK = """
const canvas = arguments[0], context = canvas.getContext("2d");
const pixels = new Uint32Array(context.getImageData(0, 0, canvas.width, canvas.height).data.buffer);
return new Set(pixels).size < 2;
"""

PATIENCE_S = 3
"""For what a busy machine shows late."""


class Browser:
    """Chromium with one page open, and what it did."""

    def __init__(self, driver: Any, url: str) -> None:
        self.driver = driver
        self.url = url
        driver.get(url)
        self.settle()

    def settle(self) -> None:
        """Wait until what was asked for is drawn."""
        self.driver.execute_async_script(
            "const done = arguments[0]; requestAnimationFrame(() => requestAnimationFrame(done));"
        )

    def all(self, selector: str) -> list[Any]:
        return list(self.driver.find_elements("css selector", selector))

    def one(self, selector: str) -> Any:
        return self.driver.find_element("css selector", selector)

    def hover(self, element: Any, x: int, y: int) -> str:
        """What the tooltip says, the mouse at x, y of `element`."""
        from selenium.webdriver import ActionChains

        self.driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", element)
        left, top = element.size["width"] // 2, element.size["height"] // 2
        ActionChains(self.driver).move_to_element_with_offset(element, x - left, y - top).perform()
        return self.tooltip()

    def press(self, element: Any, *keys: str) -> str:
        """What the tooltip says after `keys` were pressed with `element` in focus."""
        from selenium.webdriver import ActionChains

        self.driver.execute_script("arguments[0].focus()", element)
        ActionChains(self.driver).send_keys(*keys).perform()
        self.settle()
        deadline = time.monotonic() + PATIENCE_S
        while not (text := self.tooltip()) and time.monotonic() < deadline:
            time.sleep(0.05)
        return text

    def tooltip(self) -> str:
        return str(self.one("#tooltip").text) if self.all("#tooltip.shown") else ""

    def requests(self) -> list[str]:
        """The addresses that the page asked for."""
        messages = [
            json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")
        ]
        return [
            message["params"]["request"]["url"]
            for message in messages
            if message["method"] == "Network.requestWillBeSent"
            and message["params"]["documentURL"].startswith("file:")
        ]


@pytest.fixture(scope="module")
def browser(start: Start, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    folder = tmp_path_factory.mktemp("browser")
    file = folder / "start.html"
    file.write_text(to_html(start))
    with chromium(folder) as driver:
        yield Browser(driver, file.as_uri())


def test_every_panel_is_drawn(browser: Browser) -> None:
    assert tuple(section.get_attribute("id") for section in browser.all("section")) == PANELS
    for canvas in browser.all("canvas"):
        browser.driver.execute_script("arguments[0].scrollIntoView()", canvas)
        browser.settle()
        assert canvas.size["width"] > 600
        assert not browser.driver.execute_script(BLANK, canvas), canvas.get_attribute("aria-label")


def test_the_mouse_is_told_what_it_points_at(browser: Browser) -> None:
    canvases = {
        canvas.get_attribute("aria-label").split(".")[0]: canvas for canvas in browser.all("canvas")
    }
    assert browser.hover(canvases["Steps"], 20, 10).startswith("Prepare\n")
    assert "Imports" in browser.hover(canvases["Steps"], 60, 36)
    assert browser.hover(canvases["Each core"], 20, 8).startswith("CPU 0: 75 % busy")
    assert "0.75 cores busy" in browser.hover(canvases["Cores busy"], 20, 50)
    assert "Lock: 100 %" in browser.hover(canvases["Running or waiting"], 600, 50)
    assert "cores" in browser.hover(canvases["Whole machine, busy"], 400, 30)
    assert "of what is shown" in browser.hover(canvases["Flame graph"], 300, 25)
    bar = browser.one("#steps .kinds")
    assert "-bound" in browser.hover(bar, 3, 5)
    assert browser.hover(browser.one("h1"), 3, 5) == ""


def test_the_keyboard_goes_wherever_the_mouse_does(browser: Browser) -> None:
    from selenium.webdriver import Keys

    steps, *_, flame = browser.all("canvas[tabindex]")
    first = browser.press(steps, Keys.ARROW_RIGHT)
    assert first.startswith("Prepare")
    assert browser.press(steps, Keys.ARROW_RIGHT).startswith("Load")
    assert "Engine (pid 200)" in browser.press(steps, Keys.ARROW_DOWN)
    browser.press(steps, "+")
    status = browser.one("#timeline .status")
    assert status.text != "0.000 s to 3.000 s"
    browser.press(steps, "0")
    assert status.text == "0.000 s to 3.000 s"
    assert browser.press(flame, Keys.ARROW_DOWN).startswith("Engine (pid 200)")
    browser.press(flame, Keys.ENTER)
    assert browser.one("#flame .status").text.startswith("Engine (pid 200)")
    browser.press(flame, Keys.ESCAPE)
    assert browser.one("#flame .status").text.startswith("All: 3.00 s")


def test_a_search_says_how_much_it_found(browser: Browser) -> None:
    field = browser.one("#flame input")
    field.send_keys("model.load")
    assert re.search(r"found .*, [1-9]\d\.\d %", browser.one("#flame .status").text)
    field.clear()
    field.send_keys(" ")


def test_a_table_sorts_and_a_tree_opens(browser: Browser) -> None:
    heading = browser.one("#waits th:nth-child(5) button")
    browser.driver.execute_script("arguments[0].click()", heading)
    assert browser.one("#waits th:nth-child(5)").get_attribute("aria-sort") == "descending"
    twist = browser.one("#imports button.twist")
    before = len(browser.all("#imports .main tbody tr"))
    browser.driver.execute_script("arguments[0].click()", twist)
    assert len(browser.all("#imports .main tbody tr")) != before
    browser.driver.execute_script("arguments[0].click()", twist)


def test_light_and_dark_can_both_be_read(browser: Browser) -> None:
    contrast = """
      const style = getComputedStyle(document.body);
      const of = (text) => text.match(/\\d+/g).slice(0, 3).reduce((sum, part) => sum + +part, 0);
      return Math.abs(of(style.color) - of(style.backgroundColor));
    """
    light = browser.driver.execute_script("return getComputedStyle(document.body).backgroundColor")
    assert browser.driver.execute_script(contrast) > 500
    browser.driver.execute_script("document.querySelector('nav button').click()")
    browser.settle()
    dark = browser.driver.execute_script("return getComputedStyle(document.body).backgroundColor")
    assert dark != light
    assert browser.driver.execute_script(contrast) > 500
    browser.driver.execute_script("document.querySelector('nav button').click()")


def test_hostile_names_are_only_text(browser: Browser) -> None:
    assert browser.driver.title.startswith("Cold start of ")
    assert browser.driver.execute_script("return document.scripts.length") == 2
    assert browser.driver.execute_script("return document.images.length") == 0
    assert HOSTILE[:40] in browser.one("#files td.path").text


def test_nothing_left_the_page_and_nothing_went_wrong(browser: Browser) -> None:
    """The last one: it looks at what all of the above did."""
    assert browser.requests() == [browser.url]
    assert browser.driver.get_log("browser") == []
