# mypy: ignore-errors
"""The kernels, in Triton.

Attention: a program computes heads of one prompt, whole, in one tile; queries and keys are turned while they are
loaded, as two halves, so that nothing is written between the product that makes them and the one that reads the result.
Every kernel can write FP8 codes for the product that follows.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def rope_attention(  # noqa: PLR0915 - one kernel is one function
    qkv,
    cos,
    sin,
    out,
    n_tokens,
    scale,
    levels,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    TILE: tl.constexpr,
    INTERLEAVED: tl.constexpr,
    CODES: tl.constexpr,
    SHARED: tl.constexpr,
    QUERIES: tl.constexpr,
):
    """Attend: bfloat16 [prompt * token, (head + 2 kv_head) * head_dim] gives [prompt * token, head * head_dim].

    A program takes QUERIES tokens of SHARED heads that read the same keys; `levels` is one over the step of FP8 codes.
    """
    half: tl.constexpr = HEAD_DIM // 2
    stride: tl.constexpr = (HEADS + 2 * KV_HEADS) * HEAD_DIM
    groups: tl.constexpr = HEADS // SHARED
    blocks: tl.constexpr = TILE // QUERIES
    program = tl.program_id(0) // blocks
    first_query = tl.program_id(0) % blocks * QUERIES
    prompt = program // groups
    first_head = program % groups * SHARED
    kv_head = first_head // (HEADS // KV_HEADS)
    part = tl.arange(0, half)
    wide = tl.arange(0, HEAD_DIM)[None, :]
    # where the two components of a pair lie; both orders give the same products of queries and keys
    near = (2 * part if INTERLEAVED else part)[None, :]
    far = 1 if INTERLEAVED else half

    key = tl.arange(0, TILE)
    seen = key[:, None] < n_tokens
    if QUERIES < TILE:
        seen = seen & (key[:, None] < first_query + QUERIES)
    row = (prompt * n_tokens + key).to(tl.int64)[:, None] * stride
    table = key[:, None] * half + part[None, :]
    c = tl.load(cos + table, mask=seen, other=0.0)
    s = tl.load(sin + table, mask=seen, other=0.0)
    at = qkv + row + (HEADS + kv_head) * HEAD_DIM + near
    first = tl.load(at, mask=seen, other=0.0).to(tl.float32)
    second = tl.load(at + far, mask=seen, other=0.0).to(tl.float32)
    k_first = tl.trans((first * c - second * s).to(qkv.dtype.element_ty))
    k_second = tl.trans((second * c + first * s).to(qkv.dtype.element_ty))
    v = tl.load(qkv + row + (HEADS + KV_HEADS + kv_head) * HEAD_DIM + wide, mask=seen, other=0.0)

    query = first_query + tl.arange(0, QUERIES)
    real = query[:, None] < n_tokens
    row = (prompt * n_tokens + query).to(tl.int64)[:, None]
    if QUERIES < TILE:
        table = query[:, None] * half + part[None, :]
        c = tl.load(cos + table, mask=real, other=0.0)
        s = tl.load(sin + table, mask=real, other=0.0)
    for i in tl.static_range(SHARED):
        head = first_head + i
        at = qkv + row * stride + head * HEAD_DIM + near
        first = tl.load(at, mask=real, other=0.0).to(tl.float32)
        second = tl.load(at + far, mask=real, other=0.0).to(tl.float32)
        q_first = ((first * c - second * s) * scale).to(qkv.dtype.element_ty)
        q_second = ((second * c + first * s) * scale).to(qkv.dtype.element_ty)
        scores = tl.dot(q_first, k_first)
        scores = tl.dot(q_second, k_second, scores)
        scores = tl.where(key[None, :] <= query[:, None], scores, float("-inf"))
        shares = tl.exp(scores - tl.max(scores, 1)[:, None])
        total = tl.sum(shares, 1)
        mixed = tl.dot(shares.to(qkv.dtype.element_ty), v) / total[:, None]
        if CODES:
            mixed = tl.minimum(tl.maximum(mixed * levels, -448.0), 448.0)
        place = row * (HEADS * HEAD_DIM) + head * HEAD_DIM + wide
        tl.store(out + place, mixed.to(out.dtype.element_ty), mask=real)


@triton.jit
def silu_gate(both, out, levels, WIDTH: tl.constexpr, BLOCK: tl.constexpr, CODES: tl.constexpr):
    """Gate: bfloat16 [row, 2 * width], gate before up, gives silu(gate) * up as [row, width]."""
    chunks: tl.constexpr = (WIDTH + BLOCK - 1) // BLOCK
    program = tl.program_id(0)
    row = (program // chunks).to(tl.int64)
    at = program % chunks * BLOCK + tl.arange(0, BLOCK)
    real = at < WIDTH
    gate = tl.load(both + row * (2 * WIDTH) + at, mask=real, other=0.0).to(tl.float32)
    up = tl.load(both + row * (2 * WIDTH) + WIDTH + at, mask=real, other=0.0).to(tl.float32)
    mixed = gate / (1.0 + tl.exp(-gate)) * up
    if CODES:
        mixed = tl.minimum(tl.maximum(mixed * levels, -448.0), 448.0)
    tl.store(out + row * WIDTH + at, mixed.to(out.dtype.element_ty), mask=real)


@triton.jit
def add_rms_norm(
    x, delta, scale, total, out, eps, levels, WIDTH: tl.constexpr, BLOCK: tl.constexpr, CODES: tl.constexpr
):
    """Add: stream and bfloat16 [row, width] give their sum, as the stream is, and its RMS norm times `scale`."""
    row = tl.program_id(0).to(tl.int64) * WIDTH
    at = tl.arange(0, BLOCK)
    real = at < WIDTH
    both = tl.load(x + row + at, mask=real, other=0.0).to(tl.float32)
    both += tl.load(delta + row + at, mask=real, other=0.0).to(tl.float32)
    tl.store(total + row + at, both.to(total.dtype.element_ty), mask=real)
    root = tl.sqrt(tl.sum(both * both, 0) / WIDTH + eps)
    normed = both / root * tl.load(scale + at, mask=real, other=0.0)
    if CODES:
        normed = tl.minimum(tl.maximum(normed * levels, -448.0), 448.0)
    tl.store(out + row + at, normed.to(out.dtype.element_ty), mask=real)
