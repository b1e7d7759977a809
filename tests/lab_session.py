"""A real JupyterLab on the loopback address, and a second way to its kernel, by which a test checks it."""

from __future__ import annotations

import importlib.util
import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from view_browser import Opened, chromium, expect

HERE = Path(__file__).parent


def need_lab():
    for name in ("jupyterlab", "ipykernel", "jupyter_client"):
        if importlib.util.find_spec(name) is None:
            pytest.skip("runs once jupyterlab is installed: pip install jupyterlab")


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextmanager
def lab_server(folder):
    """Start JupyterLab in a folder of its own; yield (address, environment)."""
    port = free_port()
    env = os.environ | {f"JUPYTER_{name}_DIR": str(folder / name.lower()) for name in ("CONFIG", "DATA", "RUNTIME")}
    env |= {
        "IPYTHONDIR": str(folder / "ipython"),
        "PYTHONPATH": os.pathsep.join((str(HERE.parent), str(HERE), os.environ.get("PYTHONPATH", ""))),
    }
    (folder / "work").mkdir()
    news = folder / "settings" / "@jupyterlab" / "apputils-extension" / "notification.jupyterlab-settings"
    news.parent.mkdir(parents=True)
    news.write_text('{"fetchNews": "false"}')  # its popup can cover a button
    env["JUPYTERLAB_SETTINGS_DIR"] = str(folder / "settings")
    command = [
        sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", "--ip=127.0.0.1", f"--port={port}",
        "--ServerApp.port_retries=0", "--IdentityProvider.token=t", f"--ServerApp.root_dir={folder / 'work'}",
        "--LabApp.expose_app_in_browser=True", "--LabApp.news_url=None",
        "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate",
    ]  # fmt: skip
    with (folder / "lab.log").open("wb") as log:
        process = subprocess.Popen(command, env=env, stdout=log, stderr=subprocess.STDOUT)
        try:
            wait_for(lambda: answers(f"http://127.0.0.1:{port}/api?token=t"), "the server", 60)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait(20)


def answers(address):
    try:
        with urllib.request.urlopen(address, timeout=2):
            return True
    except (urllib.error.URLError, OSError):
        return False


def wait_for(done, what, limit_s=30.0):
    end = time.monotonic() + limit_s
    while time.monotonic() < end:
        if found := done():
            return found
        time.sleep(0.05)
    raise AssertionError(f"{what} did not come within {limit_s} s")


@contextmanager
def lab_page(folder, *, width=1400, height=1400):
    """A browser page on a JupyterLab that works in `folder`/work."""
    need_lab()
    with chromium() as browser, lab_server(folder) as address:
        where = browser.new_context(viewport={"width": width, "height": height})
        where.set_default_timeout(60_000)
        found = Lab(where.new_page(), folder, address)
        found.browser = browser
        try:
            yield found
        finally:
            found.close()
            where.close()


# From the start of a cell to the first map drawn on a canvas, in the page's own clock.
FIRST_MAP = """() => {
  const began = performance.now();
  const known = new Set(document.querySelectorAll(".wb-widget"));
  window.__map = new Promise((resolve) => {
    const look = () => {
      const widget = [...document.querySelectorAll(".wb-widget")].find((one) => !known.has(one));
      const panes = widget === undefined ? [] : [...widget.querySelectorAll(".wb-pane")];
      if (panes.length && panes.every((one) => Number(one.dataset.draws) > 0)) resolve(performance.now() - began);
      else requestAnimationFrame(look);
    };
    look();
  });
  window.jupyterapp.commands.execute("notebook:run-cell");
}"""


class Lab(Opened):
    """A notebook page; `run` executes a cell on the page, `ask` reads from its kernel."""

    def __init__(self, page, folder, address):
        super().__init__(page)
        self.folder = folder
        self.address = address
        self.foreign = []
        page.on(
            "request",
            lambda r: self.foreign.append(r.url) if not r.url.startswith((address, "data:", "blob:")) else None,
        )
        self.client = None

    def open(self, name, sources):
        """Write a notebook with these cells and open it."""
        cells = [
            {
                "cell_type": "code",
                "id": f"c{i}",
                "execution_count": None,
                "metadata": {},
                "outputs": [],
                "source": source,
            }
            for i, source in enumerate(sources)
        ]
        kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
        body = {"cells": cells, "metadata": kernel, "nbformat": 4, "nbformat_minor": 5}
        (self.folder / "work" / name).write_text(json.dumps(body))
        self.go(name)

    def go(self, name):
        self.page.goto(f"{self.address}/lab/tree/{name}?token=t&reset")
        self.page.locator(".jp-Notebook .jp-Cell").first.wait_for()
        self.page.wait_for_function("window.jupyterapp !== undefined")
        self.page.wait_for_function(
            """() => {
              const kernel = window.jupyterapp.shell.currentWidget?.sessionContext?.session?.kernel;
              return kernel?.status === "idle" && kernel.connectionStatus === "connected";
            }"""
        )

    def command(self, name, arguments=None):
        # not awaited: a run of cells ends when the kernel says so, and the tests wait for what they want to see
        run = "([name, args]) => { window.jupyterapp.commands.execute(name, args); }"
        self.page.evaluate(run, [name, arguments or {}])

    def run_all(self):
        self.command("notebook:run-all-cells")

    def choose(self, cell):
        """Make a cell the one that commands act on."""
        self.page.locator(".jp-Notebook .jp-CodeCell").nth(cell).locator(".jp-InputArea-editor").click()

    def run_cell(self, cell):
        self.choose(cell)
        self.command("notebook:run-cell")

    def first_map_ms(self, cell):
        """Run a cell and give the milliseconds until its map is drawn."""
        self.choose(cell)
        self.page.evaluate(FIRST_MAP)
        return self.page.evaluate("window.__map")

    def shown(self, count=1):
        """Wait until so many views are live."""
        expect(self.page.locator('.wb-widget[data-ready="true"]')).to_have_count(count)

    def connect(self):
        """Reach the notebook's kernel by its connection file."""
        from jupyter_client import BlockingKernelClient

        number = self.page.evaluate("window.jupyterapp.shell.currentWidget.sessionContext.session.kernel.id")
        self.client = BlockingKernelClient(connection_file=str(self.folder / "runtime" / f"kernel-{number}.json"))
        self.client.load_connection_file()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=60)

    def ask(self, expression):
        """Value of an expression in the kernel, through JSON."""
        if self.client is None:
            self.connect()
        code = f"import json as _json; _value = _json.dumps({expression})"
        reply = self.client.execute_interactive(
            code, user_expressions={"value": "_value"}, timeout=60, output_hook=lambda _: None, store_history=False
        )
        content = reply["content"]
        assert content["status"] == "ok", content
        return json.loads(eval(content["user_expressions"]["value"]["data"]["text/plain"]))  # repr of a str

    def do(self, code):
        """Run statements in the kernel."""
        self.ask("None")
        reply = self.client.execute_interactive(code, timeout=120, output_hook=lambda _: None, store_history=False)
        assert reply["content"]["status"] == "ok", reply["content"]

    def places(self, frame=0, pane=0):
        """Coordinates that the kernel holds for a pane of the first map, float64 [row, 2]."""
        found = f"view.maps['maps'][0]['frames'][{frame}]['panes'][{pane}]['xy']"
        entry = self.ask(f"view.maps['blocks'][{found}]")
        data = f"view.map_buffer[{entry['at']}:{entry['at'] + entry['size']}]"
        values = self.ask(f"list(__import__('numpy').frombuffer({data}, '<f4').astype(str))")
        return np.array(values, np.float32).reshape(-1, 2).astype(np.float64)

    def end_kernels(self):
        """Leave no kernel behind: each takes memory and time from the next test."""
        self.close()
        self.page.evaluate("() => window.jupyterapp.serviceManager.sessions.shutdownAll()")

    def close(self):
        if self.client is not None:
            self.client.stop_channels()
            self.client = None
