"""One self-contained page to look at a start with: no network, nothing else to install.

All that comes from the traced side is hostile: it goes into the page as JSON in which no
character can end the script element, the page's own code sets it as text, never as
markup, and a Content-Security-Policy lets nothing run but that code and nothing be fetched.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from html import escape as escape_html
from pathlib import Path
from string import Template

from analysis.report.page import page
from analysis.start import Start

FOLDER = Path(__file__).parent / "web"
SCRIPTS = (
    "base.js",
    "timeline.js",
    "lanes.js",
    "flame.js",
    "tables.js",
    "model.js",
    "time_panel.js",
    "panels.js",
    "start.js",
)
"""In this order: what runs at once needs what stands before it."""
_NO_MARKUP = str.maketrans({"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"})


def to_html(start: Start) -> str:
    """The page for one start."""
    data = page(start)
    return document(str(data["headline"]), data, SCRIPTS)


def document(
    title: str,
    data: Mapping[str, object],
    scripts: Sequence[str],
    styles: Sequence[str] = ("page.css",),
) -> str:
    """A page that shows `data` by `scripts` and `styles`, files of the folder web."""
    style = "".join((FOLDER / name).read_text("utf-8") for name in styles)
    code = "\n".join(['"use strict";', *((FOLDER / name).read_text("utf-8") for name in scripts)])
    policy = (
        f"default-src 'none'; img-src data:; script-src {_digest(code)}; style-src {_digest(style)}"
    )
    return Template((FOLDER / "page.html").read_text("utf-8")).substitute(
        title=escape_html(title),
        policy=f"{policy}; base-uri 'none'; form-action 'none'",
        style=style,
        data=json.dumps(data, separators=(",", ":")).translate(_NO_MARKUP),
        script=code,
    )


def _digest(text: str) -> str:
    """What a policy names an inline script or style by."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
