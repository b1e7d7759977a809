"""A page in a real Chromium with the network off; everything that should not happen is written down."""

from __future__ import annotations

import json
import re
import shutil
from contextlib import contextmanager

import numpy as np
import pytest

expect = pytest.importorskip("playwright.sync_api").expect
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
browser_test = pytest.mark.browser

_WATCH = """
window.__violations = [];
document.addEventListener("securitypolicyviolation", (e) => {
  window.__violations.push(`${e.violatedDirective} ${e.blockedURI}`);
});
"""


@contextmanager
def chromium():
    """One browser; skips where there is none."""
    if CHROMIUM is None:
        pytest.skip("runs once chromium is installed: apt-get install chromium")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        browser = play.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        )
        try:
            yield browser
        finally:
            browser.close()


class Opened:
    """An open page and what went wrong on it."""

    def __init__(self, page):
        self.page = page
        self.problems = []
        self.requests = []
        page.on(
            "console", lambda m: self.problems.append(f"{m.type}: {m.text}") if m.type in ("error", "warning") else None
        )
        page.on("pageerror", lambda e: self.problems.append(f"error: {e}"))
        page.on("dialog", self._dialog)
        page.on("popup", lambda p: self.problems.append("popup"))
        page.on(
            "request",
            lambda r: self.requests.append(r.url) if not r.url.startswith(("file:", "blob:", "data:")) else None,
        )

    def _dialog(self, dialog):
        if dialog.type == "beforeunload":  # an unsaved notebook
            dialog.accept()
        else:
            self.problems.append(f"dialog: {dialog.message}")
            dialog.dismiss()

    def check(self):
        """No error, no request, no violation, nothing of a hostile string ran."""
        assert self.problems == []
        assert self.requests == []
        assert self.page.evaluate("window.__violations") == []
        assert self.page.evaluate("window.__pwned__ === undefined")

    def selection(self):
        return json.loads(self.page.locator(".wb-exchange textarea").input_value())

    def frame(self, pane=0):
        """Middle on screen, target in map units, pixels per unit; and the place of the canvas."""
        node = self.page.locator(".wb-pane").nth(pane)
        box = node.locator(".wb-over").bounding_box()
        return (*json.loads(node.get_attribute("data-frame")), box["x"], box["y"])

    def screen(self, xy, pane=0):
        """Screen places of map places [point, 2]."""
        mx, my, tx, ty, k, left, top = self.frame(pane)
        xy = np.asarray(xy, np.float64)
        return np.column_stack((left + mx + (xy[:, 0] - tx) * k, top + my - (xy[:, 1] - ty) * k))

    def draw_line(self, points, modifiers=()):
        """Press at the first point, go through the others, release."""
        mouse = self.page.mouse
        for key in modifiers:
            self.page.keyboard.down(key)
        mouse.move(*points[0])
        mouse.down()
        for point in points[1:]:
            mouse.move(*point)
        mouse.up()
        for key in modifiers:
            self.page.keyboard.up(key)


@contextmanager
def opened(browser, path, *, width=1280, height=1000, scheme="light", **context):
    """Open a file with the network off and wait until it is drawn."""
    where = browser.new_context(
        viewport={"width": width, "height": height}, color_scheme=scheme, offline=True, **context
    )
    where.set_default_timeout(20_000)
    where.add_init_script(_WATCH)
    page = where.new_page()
    found = Opened(page)
    page.goto(path.resolve().as_uri())
    page.wait_for_selector("#wb-root[data-ready]", state="attached")
    for pane in page.locator(".wb-pane").all():
        expect(pane).to_have_attribute("data-draws", re.compile("[1-9]"))
    try:
        yield found
    finally:
        where.close()


def inside(polygon, points):
    """Which points lie inside a polygon, by crossings; bool [point]."""
    polygon = np.asarray(polygon, np.float64)
    x, y = np.asarray(points, np.float64).T
    odd = np.zeros(len(x), bool)
    for (x0, y0), (x1, y1) in zip(polygon, np.roll(polygon, 1, axis=0), strict=True):
        crosses = (y0 > y) != (y1 > y)
        with np.errstate(divide="ignore", invalid="ignore"):
            odd ^= crosses & (x < (x1 - x0) * (y - y0) / (y1 - y0) + x0)
    return odd


COLOURED = """(canvas) => {
  if (!canvas.width || !canvas.height) return 0;  // given up for a new one just now
  const d = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
  const spread = (i) => Math.max(d[i], d[i + 1], d[i + 2]) - Math.min(d[i], d[i + 1], d[i + 2]);
  let n = 0;
  for (let i = 0; i < d.length; i += 4) if (d[i + 3] > 60 && spread(i) > 40) n += 1;
  return n;
}"""

CONTRAST = """() => {
  const linear = (v) => ((v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
  const light = (c) => 0.2126 * linear(c[0]) + 0.7152 * linear(c[1]) + 0.0722 * linear(c[2]);
  const parse = (s) => { const m = s.match(/[\\d.]+/g).map(Number); return m.length === 3 ? [...m, 1] : m; };
  const ground = (node) => {
    for (let n = node; n; n = n.parentElement) {
      const c = parse(getComputedStyle(n).backgroundColor);
      if (c[3] > 0.99) return c;
    }
    return [255, 255, 255, 1];
  };
  const low = [];
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) {
    const node = walk.currentNode.parentElement;
    if (!walk.currentNode.data.trim() || !node.checkVisibility()) continue;
    if (node.closest("script, noscript, :disabled")) continue;
    const style = getComputedStyle(node);
    const ink = parse(node instanceof SVGElement ? style.fill : style.color);
    const [a, b] = [light(ink), light(ground(node))].sort((x, y) => y - x);
    const ratio = (a + 0.05) / (b + 0.05);
    if (ratio < 4.5) low.push(`${ratio.toFixed(2)} ${node.tagName} ${walk.currentNode.data.slice(0, 40)}`);
  }
  return low;
}"""

# Forty moves over a map: milliseconds until the text of the row is laid out.
HOVER = """() => new Promise((resolve) => {
  const over = document.querySelector(".wb-over"), box = over.getBoundingClientRect();
  const tip = document.querySelector(".wb-tip");
  const [mx, my] = JSON.parse(document.querySelector(".wb-pane").dataset.frame);
  const times = [];
  for (let i = 0; i < 40; i += 1) {
    const began = performance.now();
    const where = { clientX: box.left + mx + 3 * i - 60, clientY: box.top + my + i - 20, bubbles: true };
    over.dispatchEvent(new PointerEvent("pointermove", where));
    void tip.offsetWidth;
    times.push(performance.now() - began);
  }
  times.sort((a, b) => a - b);
  resolve({ median: times[20], worst: times[39], shown: !tip.hidden });
})"""
