"""The user on whose behalf root records."""

from __future__ import annotations

import ctypes
import os
import pwd
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from tracer.errors import NotPermitted, UsageError

_libc = ctypes.CDLL(None)


@dataclass(frozen=True, slots=True)
class Owner:
    """A user: ids, login name, home and every group, as the user database has them."""

    uid: int
    gid: int
    name: str
    home: str
    groups: tuple[int, ...]

    @classmethod
    def named(cls, name: str) -> Owner:
        """The user called `name`; raise UsageError where there is none."""
        try:
            return cls._of(pwd.getpwnam(name))
        except KeyError:
            raise UsageError(f"there is no user named {name}; see `getent passwd`") from None

    @classmethod
    def of_caller(cls, environ: Mapping[str, str]) -> Owner:
        """The user who called sudo, as `environ` tells it, else the one we run as."""
        uid = environ.get("SUDO_UID", "")
        number = int(uid) if os.geteuid() == 0 and uid.isdecimal() else os.geteuid()
        try:
            return cls._of(pwd.getpwuid(number))
        except KeyError:
            raise UsageError(f"there is no user with the id {number}") from None

    @classmethod
    def _of(cls, entry: pwd.struct_passwd) -> Owner:
        groups = tuple(os.getgrouplist(entry.pw_name, entry.pw_gid))
        return cls(entry.pw_uid, entry.pw_gid, entry.pw_name, entry.pw_dir, groups)

    @contextmanager
    def acting(self) -> Iterator[None]:
        """Touch files with this user's rights, and no others, inside the block.

        Only the file-system ids change, so that all else stays root's. Files made
        inside are the user's; what the user may not reach, root doesn't either.
        """
        if os.geteuid() != 0:
            yield
            return
        groups = os.getgroups()
        uid, gid = _libc.setfsuid(-1), _libc.setfsgid(-1)  # -1 changes nothing, tells the old
        try:
            os.setgroups(self.groups)
            _libc.setfsgid(self.gid)
            _libc.setfsuid(self.uid)
            if (_libc.setfsuid(-1), _libc.setfsgid(-1)) != (self.uid, self.gid):
                raise NotPermitted(f"can't take on the file rights of user {self.name}")
            yield
        finally:
            _libc.setfsuid(uid)
            _libc.setfsgid(gid)
            os.setgroups(groups)
