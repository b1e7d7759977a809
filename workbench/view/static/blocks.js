// Arrays travel as one little-endian buffer; the document says where each block lies in it.

const KINDS = { f4: Float32Array, f8: Float64Array, i4: Int32Array, u1: Uint8Array, u2: Uint16Array, u4: Uint32Array };

function bytesOfBase64(text) {
  const raw = atob(text);
  const bytes = new Uint8Array(raw.length);
  for (let i = 0; i < raw.length; i += 1) bytes[i] = raw.charCodeAt(i);
  return bytes;
}

async function gunzip(bytes) {
  if (typeof DecompressionStream === "undefined") {
    throw new Error("This browser cannot unpack the data (no DecompressionStream). Write the report with compress=False.");
  }
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

/** Every block of a document, unpacked: typed arrays and, for kind "json", parsed values. */
async function unpack(blocks, buffer) {
  const read = async ({ kind, at, size, gzip }) => {
    let bytes = buffer.subarray(at, at + size);
    if (gzip) bytes = await gunzip(bytes);
    if (kind === "json") return JSON.parse(new TextDecoder().decode(bytes));
    const Kind = KINDS[kind];
    if (Kind === undefined) throw new Error(`The document holds a block of unknown kind ${JSON.stringify(kind)}.`);
    const own = bytes.slice(); // a copy, so that it starts aligned
    return new Kind(own.buffer, 0, own.byteLength / Kind.BYTES_PER_ELEMENT);
  };
  return Promise.all(blocks.map(read));
}
