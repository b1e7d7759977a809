"""A live view that is closed leaves nothing behind on the page that it stood on."""

import base64

import pytest
from view_browser import browser_test, chromium
from view_runs import make_run

from workbench.view import explore
from workbench.view.static_files import script

pytestmark = browser_test

# What anywidget gives a view: its traits, and calls that nobody answers here.
OPEN = """async ({ code, traits, bytes }) => {
  const read = (text) => new DataView(Uint8Array.from(atob(text), (one) => one.charCodeAt(0)).buffer);
  const values = { ...traits, ...Object.fromEntries(Object.entries(bytes).map(([name, text]) => [name, read(text)])) };
  const heard = new Set();
  const model = {
    get: (name) => values[name], set: (name, value) => { values[name] = value; }, save_changes() {}, send() {},
    on: (event, call) => heard.add(call), off: (event, call) => heard.delete(call),
  };
  const url = URL.createObjectURL(new Blob([code], { type: "text/javascript" }));
  const { default: widget } = await import(url);
  const host = document.body.appendChild(document.createElement("div"));
  const close = await widget.render({ model, el: host });
  globalThis.closeView = () => { close(); host.remove(); return heard.size; };
  return host.dataset.ready;
}"""


@pytest.fixture
def page():
    with chromium() as browser:
        context = browser.new_context(offline=True)
        yield context.new_page()
        context.close()


def heard(session):
    """Listeners on the window, the document, its body and every media query, as the browser counts them."""
    objects = [
        session.send("Runtime.evaluate", {"expression": name})["result"]["objectId"]
        for name in ("window", "document", "document.body", "MediaQueryList.prototype")
    ]
    queries = session.send("Runtime.queryObjects", {"prototypeObjectId": objects.pop()})["objects"]["objectId"]
    found = session.send("Runtime.getProperties", {"objectId": queries, "ownProperties": True})["result"]
    objects += [one["value"]["objectId"] for one in found if one["name"].isdigit()]
    counts = [session.send("DOMDebugger.getEventListeners", {"objectId": one})["listeners"] for one in objects]
    return sum(map(len, counts))


def test_a_closed_view_hears_nothing_any_more(page, tmp_path):
    run = make_run(tmp_path / "run", [f"prompt {i}" for i in range(30)])
    state = explore(run, umap=False, background=False).get_state()
    raw = {name: value for name, value in state.items() if isinstance(value, bytes | memoryview)}
    given = {
        "code": script(),
        "traits": {name: state[name] for name in ("doc", "maps", "beyond", "place", "names", "status", "sections")},
        "bytes": {name: base64.b64encode(value).decode() for name, value in raw.items() if not name.startswith("_")},
    }
    session = page.context.new_cdp_session(page)
    before = heard(session)
    for _ in range(3):
        assert page.evaluate(OPEN, given) == "true"
        assert heard(session) > before
        assert page.evaluate("closeView()") == 0
        assert heard(session) == before
