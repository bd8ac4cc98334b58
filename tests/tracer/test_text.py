"""Text from the traced side, made safe to print."""

from __future__ import annotations

import pytest

from tracer.text import escape


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("vllm serve /models/a b", "vllm serve /models/a b"),
        ("Größe 模型 😀", "Größe 模型 😀"),
        ("\x1b]0;owned\x07", "\\x1b]0;owned\\x07"),
        ("two\nlines\r\t\0", "two\\x0alines\\x0d\\x09\\x00"),
        ("\x7f\x9b31m", "\\x7f\\x9b31m"),
        ("gpj\u202egnp\u2066\u200f\u061c", "gpj\\u202egnp\\u2066\\u200f\\u061c"),
        ("line\u2028paragraph\u2029", "line\\u2028paragraph\\u2029"),
        ("\udcff\ud83d", "\\udcff\\ud83d"),
    ],
)
def test_what_a_terminal_acts_on_becomes_visible(text: str, shown: str) -> None:
    assert escape(text) == shown
    escape(text).encode()
