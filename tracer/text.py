"""Text from the traced side, made safe to print."""

from __future__ import annotations

import re

_UNSAFE = re.compile(
    "["
    "\x00-\x1f\x7f-\x9f"  # C0, DEL and C1: terminals act on them
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # they turn the reading direction
    "\u2028\u2029"  # line and paragraph separators: some viewers break the line
    "\ud800-\udfff"  # lone surrogates: they can't be encoded
    "]"
)


def escape(text: str) -> str:
    """`text` on one line, with every character that a terminal acts on made visible.

    `\\xNN` up to U+00FF, `\\uNNNN` above; all else, other scripts included, stays.
    """
    return _UNSAFE.sub(_visible, text)


def _visible(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
