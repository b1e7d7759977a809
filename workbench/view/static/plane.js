// The plane of a map: axis positions, what a line surrounds, a grid that finds points, and where a map looks.

/** Axis positions at 1, 2 or 5 times a power of ten, about `wanted` of them. */
function ticks(low, high, wanted) {
  const rough = (high - low) / wanted;
  if (!(rough > 0) || !Number.isFinite(rough)) return [];
  const unit = 10 ** Math.floor(Math.log10(rough));
  const step = unit * ([1, 2, 5, 10].find((m) => m * unit >= rough) || 10);
  const first = Math.ceil(low / step);
  return Array.from({ length: Math.floor(high / step) - first + 1 }, (_, i) => Number(((first + i) * step).toPrecision(12)));
}

/** Whether (x, y) lies inside the polygon, by counting the edges that a ray to the right crosses. */
function inside(polygon, x, y) {
  let odd = false;
  for (let i = 0, j = polygon.length - 1; i < polygon.length; j = i, i += 1) {
    const [xi, yi] = polygon[i];
    const [xj, yj] = polygon[j];
    if (yi > y !== yj > y && x < ((xj - xi) * (y - yi)) / (yj - yi) + xi) odd = !odd;
  }
  return odd;
}

function extent(lists) {
  const box = { left: Infinity, right: -Infinity, low: Infinity, high: -Infinity };
  for (const xy of lists) {
    for (let i = 0; i < xy.length; i += 2) {
      if (!Number.isFinite(xy[i]) || !Number.isFinite(xy[i + 1])) continue;
      box.left = Math.min(box.left, xy[i]);
      box.right = Math.max(box.right, xy[i]);
      box.low = Math.min(box.low, xy[i + 1]);
      box.high = Math.max(box.high, xy[i + 1]);
    }
  }
  return box.left <= box.right ? box : { left: -1, right: 1, low: -1, high: 1 };
}

/** A uniform grid over the points: buckets of row numbers, so that a hover looks at a few points only. */
class Grid {
  constructor(xy, box) {
    const n = xy.length / 2;
    this.side = Math.max(1, Math.min(256, Math.floor(Math.sqrt(n))));
    this.box = box;
    this.width = (box.right - box.left || 1) / this.side;
    this.height = (box.high - box.low || 1) / this.side;
    const cells = new Int32Array(n).fill(-1);
    this.starts = new Int32Array(this.side * this.side + 1);
    for (let i = 0; i < n; i += 1) {
      if (!Number.isFinite(xy[2 * i]) || !Number.isFinite(xy[2 * i + 1])) continue;
      cells[i] = this.cell(xy[2 * i], xy[2 * i + 1]);
      this.starts[cells[i] + 1] += 1;
    }
    for (let c = 0; c < this.side * this.side; c += 1) this.starts[c + 1] += this.starts[c];
    this.rows = new Int32Array(this.starts[this.side * this.side]);
    const next = this.starts.slice();
    for (let i = 0; i < n; i += 1) if (cells[i] >= 0) this.rows[next[cells[i]]++] = i;
  }

  column(x) {
    return Math.min(this.side - 1, Math.max(0, Math.floor((x - this.box.left) / this.width)));
  }

  line(y) {
    return Math.min(this.side - 1, Math.max(0, Math.floor((y - this.box.low) / this.height)));
  }

  cell(x, y) {
    return this.line(y) * this.side + this.column(x);
  }

  /** Call `visit` with every row whose cell touches the box. */
  each(left, right, low, high, visit) {
    for (let line = this.line(low); line <= this.line(high); line += 1) {
      const at = line * this.side;
      for (let i = this.starts[at + this.column(left)]; i < this.starts[at + this.column(right) + 1]; i += 1) visit(this.rows[i]);
    }
  }
}

/** Where a map looks: the middle and the scale, shared by maps that have one frame. */
class Camera {
  constructor() {
    this.maps = [];
    this.x = this.y = 0;
    this.zoom = 1; // times the scale at which everything fits
  }

  move(x, y, zoom) {
    [this.x, this.y, this.zoom] = [x, y, Math.min(400, Math.max(0.5, zoom))];
    for (const map of this.maps) map.schedule();
  }
}
