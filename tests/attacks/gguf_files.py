"""GGUF files byte by byte: a sound one, and what an attacker or a bad disk makes of it."""

import struct

import numpy as np

U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)
_CODES = {U8: "B", I8: "b", U16: "H", I16: "h", U32: "I", I32: "i", F32: "f", BOOL: "B", U64: "Q", I64: "q", F64: "d"}


def text(value):
    raw = value if isinstance(value, bytes) else value.encode()
    return struct.pack("<Q", len(raw)) + raw


def key(name, kind, value):
    if isinstance(kind, list):
        body = b"".join(text(v) if kind[0] == STRING else struct.pack("<" + _CODES[kind[0]], v) for v in value)
        return text(name) + struct.pack("<IIQ", ARRAY, kind[0], len(value)) + body
    body = text(value) if kind == STRING else struct.pack("<" + _CODES[kind], value)
    return text(name) + struct.pack("<I", kind) + body


def tensor(name, sizes, kind, offset):
    return text(name) + struct.pack(f"<I{len(sizes)}QIQ", len(sizes), *sizes, kind, offset)


KEYS = (
    key("general.architecture", STRING, "llama"),
    key("general.languages", [STRING], ["en"]),
    key("llama.block_count", U32, 1),
    key("llama.rope.freq_base", F32, 10000.0),
    key("tokenizer.ggml.model", STRING, "gpt2"),
    key("tokenizer.ggml.tokens", [STRING], ["a", "b", "<0x0A>"]),
    key("tokenizer.ggml.scores", [F32], [0.0, -1.0, -2.0]),
    key("tokenizer.ggml.token_type", [I32], [1, 1, 6]),
    key("tokenizer.ggml.add_bos_token", BOOL, 1),
)
TENSORS = (tensor("a", (4, 2), 0, 0), tensor("b", (32, 2), 8, 32), tensor("c", (32,), 3, 128))
DATA = np.arange(8, dtype="<f4").tobytes() + bytes(range(68)) + bytes(28) + bytes(range(20))


def build(
    keys=KEYS, tensors=TENSORS, data=DATA, *, version=3, n_keys=None, n_tensors=None, alignment=32, magic=b"GGUF"
):
    head = magic + struct.pack(
        "<IQQ", version, len(tensors) if n_tensors is None else n_tensors, len(keys) if n_keys is None else n_keys
    )
    head += b"".join(keys) + b"".join(tensors)
    return head + bytes(-len(head) % alignment) + data


def toy_llama():
    """A GGUF file that opens as a decoder of one block with a tokenizer: header and data."""
    numbers = {
        "block_count": 1,
        "context_length": 64,
        "embedding_length": 32,
        "feed_forward_length": 64,
        "vocab_size": 5,
    }
    numbers |= {"attention.head_count": 2, "attention.head_count_kv": 1, "rope.dimension_count": 16}
    keys = [key("general.architecture", STRING, "llama")]
    keys += [key(f"llama.{name}", U32, value) for name, value in numbers.items()]
    keys += [key("llama.rope.freq_base", F32, 1e4), key("llama.attention.layer_norm_rms_epsilon", F32, 1e-5)]
    keys += [key("tokenizer.ggml.model", STRING, "gpt2"), key("tokenizer.ggml.pre", STRING, "smollm")]
    keys += [key("tokenizer.ggml.tokens", [STRING], ["a", "b", "ab", "<|e|>", "c"])]
    keys += [key("tokenizer.ggml.token_type", [I32], [1, 1, 1, 3, 1]), key("tokenizer.ggml.merges", [STRING], ["a b"])]
    shapes = {"token_embd": (32, 5), "output_norm": (32,), "blk.0.attn_norm": (32,), "blk.0.ffn_norm": (32,)}
    shapes |= {
        "blk.0.attn_q": (32, 32),
        "blk.0.attn_k": (32, 16),
        "blk.0.attn_v": (32, 16),
        "blk.0.attn_output": (32, 32),
    }
    shapes |= {"blk.0.ffn_gate": (32, 64), "blk.0.ffn_up": (32, 64), "blk.0.ffn_down": (64, 32)}
    tensors, at = [], 0
    for name, sizes in shapes.items():
        tensors.append(tensor(f"{name}.weight", sizes, 0, at))
        at += 4 * int(np.prod(sizes))
    return build(keys, tensors, b""), bytes(at)


def with_key(name, kind, value):
    return build((*(k for k in KEYS if not k.startswith(text(name))), key(name, kind, value)))


def hostile():
    """Yield name, bytes and a part of the message."""
    huge = 1 << 62
    yield "empty", b"", "empty"
    yield "magic only", b"GGUF", "header"
    yield "other magic", build(magic=b"GGML"), "must begin with GGUF"
    yield "version 1", build(version=1), "version"
    yield "version 4", build(version=4), "version"
    yield "big-endian", b"GGUF" + struct.pack(">IQQ", 3, 1, 1) + bytes(64), "big-endian"
    yield "huge key count", build(n_keys=huge), "key count"
    yield "huge tensor count", build(n_tensors=huge), "tensor count"
    yield "one key too many", build(n_keys=len(KEYS) + 1), ""
    yield "one tensor too many", build(n_tensors=len(TENSORS) + 1), ""
    yield "key twice", build((*KEYS, KEYS[2])), "once"
    yield "empty key", build((*KEYS, key("", U8, 1))), "empty key"
    yield "key of 600 bytes", build((*KEYS, key("k" * 600, U8, 1))), "512"
    yield "key that is not UTF-8", build((*KEYS, key(b"\xff\xfe", U8, 1))), "UTF-8"
    yield "escape codes in a key", build((*KEYS, text("\x1b[2J") + struct.pack("<IQ", 99, 0))), "\\u001b[2J"
    yield "huge string", build((*KEYS, text("k") + struct.pack("<IQ", STRING, huge))), "16777216"
    yield "string past the end", build((*KEYS, text("k") + struct.pack("<IQ", STRING, 1 << 20))), "fit in the file"
    yield "huge array", build((*KEYS, text("k") + struct.pack("<IIQ", ARRAY, U64, huge))), "1048576"
    yield "huge array of strings", build((*KEYS, text("k") + struct.pack("<IIQ", ARRAY, STRING, huge))), "1048576"
    yield "array past the end", build((*KEYS, text("k") + struct.pack("<IIQ", ARRAY, U64, 1 << 20))), "fit in the file"
    yield (
        "strings past the end",
        build((*KEYS, text("k") + struct.pack("<IIQ", ARRAY, STRING, 1 << 20))),
        "fit in the file",
    )
    yield "array of arrays", build((*KEYS, text("k") + struct.pack("<IIQIQ", ARRAY, ARRAY, 1, U8, 0))), "one level"
    yield "array of type 77", build((*KEYS, text("k") + struct.pack("<IIQ", ARRAY, 77, 1) + bytes(8))), "known type"
    yield "NaN", with_key("llama.rope.freq_base", F32, float("nan")), "finite"
    yield "Inf", with_key("llama.rope.freq_base", F64, float("inf")), "finite"
    yield "bool of 2", with_key("tokenizer.ggml.add_bos_token", BOOL, 2), "0 or 1"
    yield "architecture as number", with_key("general.architecture", U32, 1), "STRING"
    yield "tokens as numbers", with_key("tokenizer.ggml.tokens", [U32], [1, 2, 3]), "[STRING]"
    yield "tokens as text", with_key("tokenizer.ggml.tokens", STRING, "abc"), "[STRING]"
    yield "token that is not UTF-8", with_key("tokenizer.ggml.tokens", [STRING], [b"\xff", "b", "<0x0A>"]), "UTF-8"
    yield "fewer scores", with_key("tokenizer.ggml.scores", [F32], [0.0]), "one value a token"
    yield "more types", with_key("tokenizer.ggml.token_type", [I32], [1, 1, 6, 1]), "one value a token"
    yield "bad byte token", with_key("tokenizer.ggml.tokens", [STRING], ["a", "b", "<0xZZ>"]), "<0x0A>"
    yield "byte token with a newline", with_key("tokenizer.ggml.tokens", [STRING], ["a", "b", "<0x0A>\n"]), "<0x0A>"
    yield "alignment 0", with_key("general.alignment", U32, 0), "power of two"
    yield "alignment 24", with_key("general.alignment", U32, 24), "power of two"
    yield "alignment 2^31", with_key("general.alignment", U32, 1 << 31), "power of two"
    yield "alignment as text", with_key("general.alignment", STRING, "32"), "UINT32"
    yield "split without its parts", with_key("split.count", U16, 3), "00003"
    yield "split count 60000", with_key("split.count", U16, 60000), "1024"
    yield from _hostile_tensors(huge)


def _hostile_tensors(huge):
    def one(*args):
        return build(tensors=(tensor(*args),), data=bytes(4096))

    yield "rank 0", one("a", (), 0, 0), "axes"
    yield "rank 5", one("a", (1,) * 5, 0, 0), "axes"
    yield "rank 2^32 - 1", build(tensors=(text("a") + struct.pack("<I", 0xFFFFFFFF) + bytes(64),)), "axes"
    yield "no name", one("", (4,), 0, 0), "name"
    yield "axis of 0", one("a", (4, 0), 0, 0), "at least 1"
    yield "axis of 2^63", one("a", (1 << 63,), 0, 0), "fit in the file"
    yield "product beyond 64 bits", one("a", (1 << 32, 1 << 32, 4), 0, 0), "fit in the file"
    yield "unknown type", one("a", (32,), 4242, 0), "unknown type 4242"
    yield "type not read", one("a", (256,), 16, 0), "IQ2_XXS"
    yield "part of a block", one("a", (33,), 8, 0), "whole blocks"
    yield "offset outside", one("a", (4,), 0, 1 << 20), ""
    yield "offset beyond 63 bits", one("a", (4,), 0, (1 << 64) - 32), ""
    yield "offset not aligned", one("a", (4,), 0, 4), "multiple of 32"
    yield "longer than the file", build(tensors=(tensor("a", (2048,), 0, 0),), data=bytes(4096)), "end within"
    yield "same name twice", build(tensors=(tensor("a", (4,), 0, 0), tensor("a", (4,), 0, 32)), data=bytes(64)), "twice"
    yield "overlap", build(tensors=(tensor("a", (16,), 0, 0), tensor("b", (4,), 0, 32)), data=bytes(64)), "overlap"
    yield (
        "same bytes twice",
        build(tensors=(tensor("a", (4,), 0, 0), tensor("b", (4,), 0, 0)), data=bytes(64)),
        "overlap",
    )
    yield "hole", build(tensors=(tensor("a", (4,), 0, 0), tensor("b", (4,), 0, 64)), data=bytes(128)), "hole"
    yield "hole at the start", one("a", (4,), 0, 32), "hole"
    yield "bytes of no tensor", build(data=DATA + bytes(1 << 16)), "cover"
    yield "data cut off", build()[:-1], "end within"
    yield "table cut off", build(data=b"")[:-60], ""


def rich():
    """Yield files that stay within most caps and cost the most to parse: name and bytes."""
    many = struct.pack("<Q", 3) + b"abc"
    strings = text("k{}") + struct.pack("<IIQ", ARRAY, STRING, 1 << 20) + many * (1 << 20)
    yield (
        "three arrays of 2^20 strings",
        build((strings, strings.replace(b"k{}", b"k01"), strings.replace(b"k{}", b"k02"))),
    )
    numbers = struct.pack("<IIQ", ARRAY, F64, 1 << 20) + np.random.default_rng(0).random(1 << 20).tobytes()
    yield "four arrays of 2^20 numbers", build([text(f"n{i}") + numbers for i in range(4)])
    yield (
        "100,000 tensors and a bad one",
        build(
            tensors=[tensor(f"t{i}", (1,), 0, i * 32) for i in range(99_999)] + [tensor("t0", (1,), 0, 0)],
            data=bytes(3_200_000),
        ),
    )
    yield (
        "16,384 keys and no end",
        build([key(f"k{i}", STRING, "v") for i in range(16_383)], n_keys=16_384, data=bytes(64)),
    )
    yield "one string of 16 MiB, five times", build([key(f"s{i}", STRING, b"\xff" * (1 << 24)) for i in range(5)])
