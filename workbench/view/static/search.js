// Search over prompt, token and class texts. Expressions run in a worker that is ended after a second: some never finish.

const WORKER = `
let texts = [];
onmessage = ({ data }) => {
  if (data.texts) { texts = data.texts; return; }
  try {
    const found = new RegExp(data.source, "iu");
    postMessage({ id: data.id, hits: texts.map((t) => (found.test(t) ? 1 : 0)) });
  } catch (error) {
    postMessage({ id: data.id, error: String(error.message) });
  }
};`;

const LIMIT_MS = 1000;

class Search {
  constructor(model) {
    this.model = model;
    this.worker = null;
    this.serial = 0;
    this.canWork = typeof Worker !== "undefined";
  }

  /** Rows whose prompt holds `needle`, case ignored. */
  plain(needle) {
    const low = needle.toLowerCase();
    return this.spread(this.model.texts.map((text) => (text !== null && text.toLowerCase().includes(low) ? 1 : 0)));
  }

  /** Rows whose prompt the expression matches; rejects with a message for the reader. */
  expression(source) {
    this.serial += 1;
    const id = this.serial;
    return new Promise((resolve, reject) => {
      const worker = this.start(reject);
      if (worker === null) return;
      const timer = setTimeout(() => {
        this.stop();
        reject(new Error("The expression took longer than one second and was stopped. Try a simpler one."));
      }, LIMIT_MS);
      worker.onmessage = ({ data }) => {
        if (data.id !== id) return;
        clearTimeout(timer);
        if (data.error) reject(new Error(data.error));
        else resolve(this.spread(data.hits));
      };
      worker.onerror = (event) => {
        event.preventDefault();
        clearTimeout(timer);
        this.stop();
        this.canWork = false;
        reject(new Error("Expressions need a worker, which this browser refuses here. Plain search still works."));
      };
      worker.postMessage({ id, source });
    });
  }

  start(reject) {
    if (this.worker !== null) return this.worker;
    try {
      const url = URL.createObjectURL(new Blob([WORKER], { type: "text/javascript" }));
      this.worker = new Worker(url);
      URL.revokeObjectURL(url);
      this.worker.postMessage({ texts: this.model.texts.map((text) => text || "") });
    } catch {
      this.canWork = false;
      reject(new Error("Expressions need a worker, which this browser refuses here. Plain search still works."));
      return null;
    }
    return this.worker;
  }

  stop() {
    if (this.worker !== null) this.worker.terminate();
    this.worker = null;
  }

  /** From prompts to rows. */
  spread(hits) {
    const rows = new Uint8Array(this.model.n);
    for (let i = 0; i < rows.length; i += 1) rows[i] = hits[this.model.prompt[i]];
    return rows;
  }
}
