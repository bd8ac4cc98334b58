"""The errors that a user is told about: one line, and an exit status."""

from __future__ import annotations


class ColdtraceError(Exception):
    """Something the user can mend; `message` is one line saying what and how.

    The message may quote names from the traced side: the door escapes it.
    """

    exit_status = 1

    def __init__(self, message: str, exit_status: int | None = None) -> None:
        super().__init__(message)
        self.message = message
        if exit_status is not None:
            self.exit_status = exit_status


class UsageError(ColdtraceError):
    """The command line can't be meant as it stands."""

    exit_status = 2


class TraceError(ColdtraceError):
    """A trace file can't be read or written."""


class NotPermitted(ColdtraceError):
    """The caller lacks a right that this needs."""
