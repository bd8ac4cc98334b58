"""Which file an inode is, on an overlay too."""

from __future__ import annotations

from pathlib import Path

from analysis.inodes import OTHER_FILES, Inodes
from probes.events import FileCached, FileUsed
from tests.analysis.synthetic import BEGIN_NS, ROOT, Story, at


def test_an_inode_is_found_by_its_device_or_if_but_one_file_has_its_number(tmp_path: Path) -> None:
    story = Story().sample(10, "main")
    for path, device, inode in (("/a", 1, 10), ("/b", 2, 10), ("/over", 40, 11), ("/gone", 0, 0)):
        used = FileUsed(at(1), None, ROOT, ROOT.pid, path, 5, 5, 0, device or None, inode or None)
        story.events.append(used)
    story.events.append(FileCached(BEGIN_NS, "/c", 5, 0, "overlay", 41, 12))
    inodes = Inodes(story.start(tmp_path, 100).trace)
    assert (inodes.path(1, 10), inodes.path(2, 10)) == ("/a", "/b")
    assert (inodes.path(1, 11), inodes.path(1, 12)) == ("/over", "/c")  # the layer's device
    assert inodes.path(3, 10) == OTHER_FILES  # two have that number
    assert inodes.path(1, 99) == OTHER_FILES
