"""`report`: runs, results and live views as one offline file.

1. Sort what was given into views: one or two runs each, and results by kind.
2. Choose the rows to draw; find the twin of each in the second run.
3. Describe maps, columns and sections as plain data, redacted where asked.
4. Join data, style and script to one page; say its size; write it whole.
"""

from __future__ import annotations

import datetime as dt
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.errors import ViewError
from workbench.view.assembly import Options, assemble
from workbench.view.given import views_of
from workbench.view.page import write_page
from workbench.view.rows import MAX_ROWS
from workbench.view.selections import keep_whole

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from workbench.analysis import Projection

MAX_BYTES = 6_000_000


def report(
    *parts: Any,
    out: str | Path = "report.html",
    projections: Sequence[Projection] | None = None,
    color: str | None = None,
    title: str | None = None,
    redact: int | str | None = None,
    keep_columns: Collection[str] = (),
    tokenizer: Any = None,
    date: str | None = None,
    limit: int = MAX_ROWS,
    seed: int = 0,
    compress: bool = True,
    max_bytes: int | None = MAX_BYTES,
    quiet: bool = False,
) -> Path:
    """Write one HTML file that opens from a disk, with no network and no kernel.

    Parameters
    ----------
    *parts : Run, result, view of `explore`, or lists of these
        The rows of a run are the points of the maps; a second run becomes a second map, linked to the first; results
        become maps, colours and sections. Several views on one page: each live view is one, and so is each list, as in
        `report([fp32, int8, comparison], [fp32, int4, other_comparison])`. Results without their run stand alone.
    out : path
        File to write; one that is there is replaced.
    projections : sequence of Projection, optional
        More maps. Without any, the principal components of the last tap are computed.
    color : str, optional
        Column that colours the maps at first: a metadata column, or "cluster".
    title : str, optional
        A few words; left out where `redact="all"`.
    redact : int or "all", optional
        Keep only the first characters of each prompt, or no text at all. Tokens, cluster names and ids made of text
        are left out in both cases.
    keep_columns : collection of str
        Metadata columns that a redacted page shows in full.
    tokenizer : optional
        Anything with `token_text(id)`; shows the tokens of runs with several rows a prompt.
    date : str, optional
        Date on the page; today's by default. With a fixed one the same input gives the same bytes.
    limit : int
        Rows drawn at most; beyond it a seeded sample, and the page says so.
    seed : int
        Of the sample.
    compress : bool
        False for browsers without DecompressionStream.
    max_bytes : int or None
        Refuse a larger file.
    quiet : bool
        Do not print the size.

    Returns
    -------
    Path
        The file.

    Raises
    ------
    ViewError
        If something given is neither run nor result, belongs to another run, or the file would be too large.
    """
    options = Options(
        date=date or dt.datetime.now(dt.UTC).date().isoformat(),
        color=color,
        title=title,
        redact=redact,
        keep_columns=keep_columns,
        token_text=getattr(tokenizer, "token_text", None),
        limit=limit,
        seed=seed,
        compress=compress,
    )
    doc, buffer = assemble(views_of(parts, projections or ()), options)
    data = write_page(doc, buffer, title=doc["title"])
    _check_size(len(data), max_bytes)
    target = Path(out)
    if not quiet:
        print(f"{target.name}: {len(data) / 1e6:.2f} MB", file=sys.stderr)
    keep_whole(target, data)
    return target


def _check_size(size: int, limit: int | None) -> None:
    if limit is not None and size > limit:
        do = "Draw fewer rows (limit=), shorten texts (redact=N), or allow it with max_bytes=None."
        raise ViewError(f"a report holds at most {limit / 1e6:.1f} MB", f"{size / 1e6:.1f} MB", do)
