"""One offline file: a document, one buffer, one style sheet, one script, and a policy that admits nothing else."""

from __future__ import annotations

import base64
import hashlib
import html
from pathlib import Path
from typing import Any

from workbench.escaping import escape, script_json
from workbench.view.static_files import script, style

_NO_SCRIPT = (
    "This page draws its maps with a script that lies in this file. Allow scripts to see it; it makes no request."
)


def source_hash(text: str) -> str:
    """Give the hash by which a content security policy admits an inline script or style."""
    return "'sha256-" + base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode("ascii") + "'"


def policy() -> str:
    """Give the content security policy: this script and this style, pictures from data, workers from blobs."""
    return (
        f"default-src 'none'; script-src {source_hash(script())}; style-src {source_hash(style())}; "
        "img-src data:; worker-src blob:; base-uri 'none'; form-action 'none'"
    )


def write_page(doc: dict[str, Any], buffer: bytes, *, title: str) -> bytes:
    """Join a document and its buffer to a page.

    Parameters
    ----------
    doc : dict
        Plain JSON; strings may hold anything.
    buffer : bytes
        The blocks that `doc["blocks"]` lists.
    title : str
        For the window; escaped here.

    Returns
    -------
    bytes
        UTF-8 HTML.
    """
    parts = (
        "<!doctype html>\n",
        '<html lang="en" data-workbench="report" data-theme="light">\n<head>\n',
        f'<meta http-equiv="Content-Security-Policy" content="{policy()}">\n',
        '<meta charset="utf-8">\n',
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n',
        '<meta name="generator" content="hidden-state workbench">\n',
        '<meta name="referrer" content="no-referrer">\n',
        f"<title>{escape(title)}</title>\n",
        f"<style>{style()}</style>\n",
        '</head>\n<body class="wb wb-body">\n<div id="wb-root"></div>\n',
        f"<noscript><p>{_NO_SCRIPT}</p></noscript>\n",
        f'<script type="application/json" id="wb-doc">{script_json(doc)}</script>\n',
        f'<script type="text/plain" id="wb-bytes">{base64.b64encode(buffer).decode("ascii")}</script>\n',
        f'<script type="module">{script()}</script>\n',
        "</body>\n</html>\n",
    )
    return "".join(parts).encode("utf-8")


class Frame:
    """A page inside a notebook cell: it may run its own script and reach nothing else.

    Parameters
    ----------
    page : bytes
        As `write_page` or a report file gives it.
    height : int
        CSS pixels.
    """

    def __init__(self, page: bytes, *, height: int = 900) -> None:
        self.page = page
        self.height = int(height)

    def _repr_html_(self) -> str:
        inside = html.escape(self.page.decode("utf-8"), quote=True)
        return f'<iframe sandbox="allow-scripts" width="100%" height="{self.height}" srcdoc="{inside}"></iframe>'


def frame(path: str | Path, *, height: int = 900) -> Frame:
    """Show a report file in a notebook cell, as it is, with no access to the notebook.

    Parameters
    ----------
    path : path
        What `report` or `to_html` wrote.
    height : int
        CSS pixels.
    """
    return Frame(Path(path).read_bytes(), height=height)
