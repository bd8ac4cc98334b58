"""On whose behalf root records, and with whose rights it touches files."""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tracer.errors import UsageError
from tracer.owner import Owner

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="taking on another user needs root")
NOBODY = Owner(65534, 65534, "nobody", "/nonexistent", (65534,))


@pytest.fixture
def reachable() -> Iterator[Path]:
    """A folder that everyone may enter; those of pytest are closed to others."""
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o755)
        yield Path(name)


@needs_root
def test_the_one_who_called_sudo_is_the_owner() -> None:
    assert Owner.of_caller({"SUDO_UID": "65534"}).uid == 65534


@pytest.mark.parametrize("environ", [{}, {"SUDO_UID": ""}, {"SUDO_UID": "-1"}])
def test_without_sudo_it_is_who_we_run_as(environ: dict[str, str]) -> None:
    assert Owner.of_caller(environ).uid == os.geteuid()


@needs_root
def test_an_id_that_nobody_has_is_told() -> None:
    with pytest.raises(UsageError, match="no user with the id 4123456"):
        Owner.of_caller({"SUDO_UID": "4123456"})


def test_a_name_that_nobody_has_is_told() -> None:
    with pytest.raises(UsageError, match="no user named nobody-at-all"):
        Owner.named("nobody-at-all")


@needs_root
def test_acting_takes_on_the_rights_and_gives_them_back(reachable: Path) -> None:
    closed = reachable / "closed"
    closed.mkdir(mode=0o700)
    before = status_ids()
    with pytest.raises(PermissionError), NOBODY.acting():
        assert status_ids() != before
        os.listdir(closed)
    assert status_ids() == before
    assert os.listdir(closed) == []


@needs_root
def test_groups_of_root_are_given_up_too(reachable: Path) -> None:
    """A folder that only a group of root's may enter stays closed."""
    closed = reachable / "closed"
    closed.mkdir()
    os.chown(closed, 1, 1)
    closed.chmod(0o070)
    groups = os.getgroups()
    os.setgroups([*groups, 1])
    try:
        with pytest.raises(PermissionError), NOBODY.acting():
            os.listdir(closed)
        assert 1 in os.getgroups()
    finally:
        os.setgroups(groups)


def status_ids() -> list[str]:
    """The user and group ids of this thread, as the kernel has them."""
    status = Path(f"/proc/self/task/{threading.get_native_id()}/status").read_text()
    return [line for line in status.splitlines() if line.startswith(("Uid", "Gid", "Groups"))]
