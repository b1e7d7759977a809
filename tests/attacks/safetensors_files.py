"""safetensors files byte by byte: a sound one, and what an attacker or a bad disk makes of it."""

import json
import struct

HEADER = {
    "__metadata__": {"format": "pt"},
    "a": {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]},
    "b": {"dtype": "BF16", "shape": [3], "data_offsets": [16, 22]},
    "c": {"dtype": "I64", "shape": [], "data_offsets": [22, 30]},
}
DATA = bytes(range(24)) + bytes(6)


def build(header=HEADER, data=DATA, *, size=None):
    raw = header if isinstance(header, bytes) else (header if isinstance(header, str) else json.dumps(header)).encode()
    return struct.pack("<Q", len(raw) if size is None else size) + raw + data


def row(dtype="U8", shape=(4,), offsets=(0, 4), **more):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets), **more}


def hostile():
    """Yield name, bytes and a part of the message."""
    yield "empty", b"", "empty"
    yield "seven bytes", bytes(7), "header"
    yield "size only", struct.pack("<Q", 2), "header"
    yield "size 2^63", build(size=1 << 63), "header"
    yield "size past the end", build(size=1 << 20), "header"
    yield "size of 20 MiB", build(b"{" + b" " * (20 << 20) + b"}", b""), "16777216"
    yield "array at the top", build("[]", b""), "begin with {"
    yield "space before the brace", build(" {}", b""), "begin with {"
    yield "not JSON", build('{"a":', b""), "JSON"
    yield "text behind the object", build("{} {}", b""), "JSON"
    yield "not UTF-8", build(b'{"\xff":1}', b""), "UTF-8"
    yield "UTF-16", build("{}".encode("utf-16-le"), b""), ""
    yield "deep", build('{"a":' + "[" * 100_000 + "]" * 100_000 + "}", b""), "nested"
    yield "deeper", build('{"a":' * 100_000, b""), "nested"
    yield "NaN", build('{"a":{"dtype":"U8","shape":[NaN],"data_offsets":[0,4]}}', bytes(4)), "finite"
    yield "Infinity", build('{"a":Infinity}', b""), "finite"
    yield "1e999", build('{"a":1e999}', b""), "finite"
    yield "integer of 5,000 digits", build('{"a":' + "9" * 5000 + "}", b""), "64 bits"
    yield "name twice", build('{"a":%s,"a":%s}' % ((json.dumps(row()),) * 2), bytes(4)), "twice"
    yield "field twice", build('{"a":{"dtype":"U8","dtype":"U8","shape":[4],"data_offsets":[0,4]}}', bytes(4)), "twice"
    yield "metadata not text", build({"__metadata__": {"a": 1}}, b""), "__metadata__"
    yield "metadata a list", build({"__metadata__": []}, b""), "__metadata__"
    yield from _hostile_rows()


def _hostile_rows():
    def one(fields, data=bytes(4)):
        return build({"a": fields}, data)

    def two(first, second, data=bytes(8)):
        return build({"a": first, "b": second}, data)

    yield "row a number", one(1), "dtype, shape"
    yield "field missing", one({"dtype": "U8", "shape": [4]}), "dtype, shape"
    yield "field unknown", one(row(code="x")), "nothing else"
    yield "dtype unknown", one(row("EVIL")), "'EVIL'"
    yield "dtype with escape codes", one(row("\x1b[31m\u202e")), "\\u001b[31m\\u202e"
    yield "dtype a list", one(row([])), "list"
    yield "type of GGUF", one(row("Q8_0", (32,), (0, 34)), bytes(34)), "'Q8_0'"
    yield "shape of text", one(row(shape="4")), "whole numbers"
    yield "shape of true", one(row("U8", (True,), (0, 1)), bytes(1)), "whole numbers"
    yield "shape of 4.0", one(row("U8", (4.0,))), "whole numbers"
    yield "shape negative", one(row("U8", (-2, -2))), "whole numbers"
    yield "rank 9", one(row("U8", (1,) * 9, (0, 1)), bytes(1)), "axes"
    yield "product beyond 64 bits", one(row("U8", (1 << 32, 1 << 32, 1 << 32))), "2^48"
    yield "nothing times much", one(row("U8", (0, 1 << 62), (0, 0)), b""), "2^48"
    yield "length not shape", one(row("U8", (5,))), "must take 5"
    yield "offsets reversed", one(row(offsets=(4, 0))), "start and an end"
    yield "three offsets", one(row(offsets=(0, 4, 8))), "start and an end"
    yield "offset negative", one(row(offsets=(-4, 0))), "whole numbers"
    yield "offset outside", one(row(offsets=(1 << 40, (1 << 40) + 4))), ""
    yield "longer than the file", one(row("U8", (8,), (0, 8))), "end within"
    yield "overlap", two(row("U8", (4,), (0, 4)), row("U8", (4,), (2, 6))), "overlap"
    yield "same bytes twice", two(row("U8", (4,), (0, 4)), row("U8", (4,), (0, 4)), bytes(4)), "overlap"
    yield "hole", two(row("U8", (2,), (0, 2)), row("U8", (4,), (4, 8))), "hole"
    yield "hole at the start", one(row(offsets=(2, 6)), bytes(6)), "hole"
    yield "bytes of no tensor", one(row(), bytes(5)), "cover"
    yield "data cut off", build()[:-1], "end within"
    yield "name of 600 bytes", build({"n" * 600: row()}, bytes(4)), "512"
    yield "no name", build({"": row()}, bytes(4)), "512"
    yield (
        "lone surrogate in a name",
        build(b'{"\\ud800":{"dtype":"EVIL","shape":[4],"data_offsets":[0,4]}}', bytes(4)),
        "\\ud800",
    )


def rich():
    """Yield files that cost the most to parse: name and bytes."""
    size = (16 << 20) - 16
    yield "16 MiB of empty lists", build('{"a":[' + "[]," * (size // 3) + "0]}", b"")
    yield "16 MiB of keys", build("{" + ",".join(f'"{i:x}":1' for i in range(size // 11)) + "}", b"")
    yield "16 MiB of two letters", build('{"a":[' + '"ab",' * (size // 5) + "0]}", b"")
    yield "750,000 keys", build("{" + ",".join(f'"{i:x}":1' for i in range(750_000)) + "}", b"")
    yield "one string of 16 MiB", build('{"a":"' + "b" * size + '"}', b"")
    rows = {f"t{i}": row("U8", (1,), (i, i + 1)) for i in range(99_999)}
    yield "100,000 tensors and a bad one", build({**rows, "z": row("U8", (1,), (5, 6))}, bytes(100_000))
    yield "100,001 tensors", build({**rows, "y": row("U8", (1,), (99_999, 100_000)), "z": row("U8", (1,), (5, 6))}, b"")
