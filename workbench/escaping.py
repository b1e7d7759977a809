"""The one way for text to enter markup, and the one way to show it in a terminal or in the label of a chart.

A page keeps untrusted text in JSON and its script writes it into text nodes; markup made here holds constants only,
except for the title.
"""

from __future__ import annotations

import html
import json
import re
from typing import Any

# C0, C1, zero-width, line and paragraph separators, bidi controls, byte order mark, surrogates
_HIDDEN = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]")
_IN_SCRIPT = str.maketrans({"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"})


def visible(text: str) -> str:
    r"""Show control, bidi, separator and surrogate characters as `\uXXXX`, so that a record stays one honest line."""
    return _HIDDEN.sub(lambda found: f"\\u{ord(found.group()):04x}", text)


def escape(text: str) -> str:
    """Make text safe as HTML text and inside quoted attributes; hidden characters become visible escapes."""
    return html.escape(visible(text), quote=True)


def script_json(value: Any) -> str:
    r"""Write JSON for a script element that is never executed: ASCII, no NaN, and no `<`, `>` or `&`."""
    return json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":")).translate(_IN_SCRIPT)
