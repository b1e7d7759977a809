"""The picture below a live view: what readers without a kernel see, such as on a code host or after reopening.

A PNG of the map, drawn here, with title, counts, legend and the first rows as escaped text. No plotting library.
"""

from __future__ import annotations

import base64
import struct
import zlib
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from workbench.escaping import escape

if TYPE_CHECKING:
    from collections.abc import Sequence

    from workbench.view.columns import ViewColumn
    from workbench.view.rows import DrawnRows

Pixels = npt.NDArray[np.uint8]
OKABE_ITO = ("#0072b2", "#d55e00", "#009e73", "#e69f00", "#56b4e9", "#cc79a7", "#f0e442", "#000000")
OTHER = "#8a8f98"
_LOW, _HIGH = np.array([233, 220, 140.0]), np.array([52, 28, 110.0])
SIDE = 420
ROWS = 5


def png_bytes(pixels: Pixels) -> bytes:
    """Write an image uint8 [y, x, 3] as PNG."""
    height, width, _ = pixels.shape
    lines = np.concatenate((np.zeros((height, 1), np.uint8), pixels.reshape(height, width * 3)), axis=1)

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", head)
        + chunk(b"IDAT", zlib.compress(lines.tobytes(), 9))
        + chunk(b"IEND", b"")
    )


def map_pixels(coordinates: Sequence[npt.NDArray[np.float32]], colours: Pixels, *, radius: int = 2) -> Pixels:
    """Draw panes of one frame side by side.

    Parameters
    ----------
    coordinates : sequence of float32 [row, 2]
        One a pane; NaN rows are left out.
    colours : uint8 [row, 3]
    """
    known = np.concatenate([xy[np.isfinite(xy).all(axis=1)] for xy in coordinates]) if coordinates else np.empty((0, 2))
    low, high = (known.min(axis=0), known.max(axis=0)) if len(known) else (np.zeros(2), np.ones(2))
    span = float(max(high - low)) or 1.0
    panes = [_pane(xy, colours, (low + high) / 2, span, radius) for xy in coordinates]
    gap = np.full((SIDE, 8, 3), 255, np.uint8)
    return np.concatenate([part for pane in panes for part in (pane, gap)][:-1], axis=1)


def _pane(xy: npt.NDArray[np.float32], colours: Pixels, middle: npt.NDArray[Any], span: float, radius: int) -> Pixels:
    image = np.full((SIDE, SIDE, 3), 255, np.uint8)
    image[[0, -1]] = image[:, [0, -1]] = 220
    rows = np.flatnonzero(np.isfinite(xy).all(axis=1))
    places = (xy[rows] - middle) / span * (SIDE - 40) + SIDE / 2
    x, y = np.round(places[:, 0]).astype(int), np.round(SIDE - places[:, 1]).astype(int)
    for dx in range(-radius, radius + 1):
        for dy in range(-radius, radius + 1):
            if dx * dx + dy * dy <= radius * radius + 1:
                image[np.clip(y + dy, 1, SIDE - 2), np.clip(x + dx, 1, SIDE - 2)] = colours[rows]
    return image


def row_colours(column: ViewColumn | None, rows: DrawnRows) -> tuple[Pixels, list[tuple[str, str]]]:
    """Colour each drawn row as the page does, and give the legend as (colour, label)."""
    if column is None:
        return np.tile(_rgb(OKABE_ITO[0]), (len(rows), 1)), []
    values = column.values[rows.prompt] if column.per == "prompt" else column.values
    if column.labels is None:
        return _shades(np.asarray(values, np.float64), column.scale)
    sizes = np.bincount(values, minlength=len(column.labels) + 1)[: len(column.labels)]
    order = np.argsort(-sizes, kind="stable")[: len(OKABE_ITO)]
    table = np.tile(_rgb(OTHER), (len(column.labels) + 1, 1))
    table[order] = [_rgb(OKABE_ITO[place]) for place in range(len(order))]
    legend = [(OKABE_ITO[place], column.labels[label]) for place, label in enumerate(order)]
    return table[values], legend + ([(OTHER, "other")] if len(column.labels) > len(order) else [])


def _shades(values: npt.NDArray[np.float64], scale: str) -> tuple[Pixels, list[tuple[str, str]]]:
    with np.errstate(divide="ignore", invalid="ignore"):
        shown = np.log10(values) if scale == "log" else values
    finite = np.isfinite(shown)
    low, high = np.percentile(shown[finite], [1, 99]) if finite.any() else (0.0, 1.0)
    share = np.clip((shown - low) / ((high - low) or 1.0), 0, 1)
    colours = np.where(finite[:, None], _LOW + (_HIGH - _LOW) * np.nan_to_num(share)[:, None], _rgb(OTHER))
    ends = [10**low, 10**high] if scale == "log" else [low, high]
    return colours.astype(np.uint8), [(_hex(_LOW), f"{ends[0]:.3g}"), (_hex(_HIGH), f"{ends[1]:.3g}")]


def _rgb(text: str) -> Pixels:
    return np.frombuffer(bytes.fromhex(text[1:]), np.uint8)


def _hex(colour: npt.NDArray[Any]) -> str:
    return "#" + bytes(colour.astype(np.uint8)).hex()


def twin_bundle(
    pixels: Pixels, legend: Sequence[tuple[str, str]], *, title: str, note: str, rows: DrawnRows, view: str
) -> dict[str, str]:
    """Give the picture as HTML, PNG and plain text; `view` is the number by which its live view finds it."""
    png = base64.b64encode(png_bytes(pixels)).decode("ascii")
    head = [f"row {int(rows.ids[k])}: {_text(rows, k)}" for k in range(min(ROWS, len(rows)))]
    marks = "".join(
        f'<span style="color:{colour}">&#9679;</span> {escape(label[:60])} &nbsp; ' for colour, label in legend
    )
    listed = "".join(f"<li>{escape(line)}</li>" for line in head)
    markup = "".join(
        (
            f'<figure class="wb-twin-{int(view)}" style="margin:0;font-family:sans-serif">',
            f"<figcaption><b>{escape(title)}</b><br>{escape(note)}</figcaption>",
            f'<img alt="{escape(title)}" src="data:image/png;base64,{png}" width="{pixels.shape[1]}">',
            f"<div>{marks}</div><ul>{listed}</ul></figure>",
        )
    )
    plain = "\n".join([title, note, *head])
    return {"text/html": markup, "image/png": png, "text/plain": plain}


def _text(rows: DrawnRows, k: int) -> str:
    text = rows.run.prompts.texts[int(rows.prompts[rows.prompt[k]])] or "(no text)"
    return text if len(text) <= 100 else text[:99] + "…"
