"""Which listening socket means that the server is up."""

from __future__ import annotations

from collections.abc import Sequence

from analysis.signature import Mark, Signatures
from probes.events import SocketListening
from tracer.session import Frames, Session


class ReadyRule:
    """Readiness by the signatures of an engine.

    The server's process listens below a function of its HTTP server. Where its
    stack wasn't seen, the port that its command line names has to do. A command
    that isn't the engine's is ready with the first TCP port of its tree.
    """

    def __init__(self, signatures: Signatures) -> None:
        self._signatures = signatures

    @classmethod
    def load(cls) -> ReadyRule:
        """The rule of the signatures that coldtrace comes with."""
        return cls(Signatures.load())

    def is_ready(self, session: Session, event: SocketListening, frames: Frames) -> bool:
        """Whether `event` is readiness; `frames` is the listener's stack, innermost
        first, empty where it wasn't seen."""
        signatures = self._signatures
        known = (signatures.mark(file, name) for file, name in frames)
        marks = [mark for mark in known if mark is not None]
        argv = session.processes[event.process].argv
        server = event.process == session.root or signatures.is_command(argv)
        if any(mark.ready for mark in marks):
            return server or self._is_server(marks)
        if not any(signatures.is_command(each.argv) for each in session.processes.values()):
            return not self._is_engine(frames)
        return server and not frames and event.port == self._port(argv)

    def _is_server(self, marks: Sequence[Mark]) -> bool:
        return any(mark.role == self._signatures.ready.role for mark in marks)

    def _is_engine(self, frames: Frames) -> bool:
        """Whether the engine's own code listens: its processes talk over TCP as well."""
        return any(f"/{self._signatures.engine}/" in file for file, _ in frames)

    def _port(self, argv: Sequence[str]) -> int:
        ready = self._signatures.ready
        for option, value in zip(argv, [*argv[1:], ""], strict=True):
            name, equals, attached = option.partition("=")
            if name == ready.port_option:
                text = attached if equals else value
                return int(text) if text.isdecimal() else ready.default_port
        return ready.default_port
