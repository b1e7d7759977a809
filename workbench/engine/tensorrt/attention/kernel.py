# mypy: ignore-errors
"""The kernel, in Triton: a program computes one head of one prompt, whole, in one tile.

Queries and keys are turned while they are loaded, as two halves, so that nothing is written between the product that
makes them and the one that reads the result.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def rope_attention(
    qkv,
    cos,
    sin,
    out,
    n_tokens,
    scale,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    TILE: tl.constexpr,
    INTERLEAVED: tl.constexpr,
):
    """Attend: bfloat16 [prompt * token, (head + 2 kv_head) * head_dim] gives [prompt * token, head * head_dim]."""
    half: tl.constexpr = HEAD_DIM // 2
    stride: tl.constexpr = (HEADS + 2 * KV_HEADS) * HEAD_DIM
    program = tl.program_id(0)
    prompt = program // HEADS
    head = program % HEADS
    kv_head = head // (HEADS // KV_HEADS)
    token = tl.arange(0, TILE)
    part = tl.arange(0, half)
    # where the two components of a pair lie; both orders give the same products of queries and keys
    near = (2 * part if INTERLEAVED else part)[None, :]
    far = 1 if INTERLEAVED else half
    real = token[:, None] < n_tokens
    row = (prompt * n_tokens + token).to(tl.int64)[:, None] * stride
    table = token[:, None] * half + part[None, :]
    c = tl.load(cos + table, mask=real, other=0.0)
    s = tl.load(sin + table, mask=real, other=0.0)

    at = qkv + row + head * HEAD_DIM + near
    first = tl.load(at, mask=real, other=0.0).to(tl.float32)
    second = tl.load(at + far, mask=real, other=0.0).to(tl.float32)
    q_first = ((first * c - second * s) * scale).to(qkv.dtype.element_ty)
    q_second = ((second * c + first * s) * scale).to(qkv.dtype.element_ty)

    at = qkv + row + (HEADS + kv_head) * HEAD_DIM + near
    first = tl.load(at, mask=real, other=0.0).to(tl.float32)
    second = tl.load(at + far, mask=real, other=0.0).to(tl.float32)
    k_first = (first * c - second * s).to(qkv.dtype.element_ty)
    k_second = (second * c + first * s).to(qkv.dtype.element_ty)

    scores = tl.dot(q_first, tl.trans(k_first))
    scores = tl.dot(q_second, tl.trans(k_second), scores)
    scores = tl.where(token[None, :] <= token[:, None], scores, float("-inf"))
    shares = tl.exp(scores - tl.max(scores, 1)[:, None])
    total = tl.sum(shares, 1)

    wide = tl.arange(0, HEAD_DIM)
    v = tl.load(qkv + row + (HEADS + KV_HEADS + kv_head) * HEAD_DIM + wide[None, :], mask=real, other=0.0)
    mixed = tl.dot(shares.to(qkv.dtype.element_ty), v) / total[:, None]
    place = (prompt * n_tokens + token).to(tl.int64)[:, None] * (HEADS * HEAD_DIM) + head * HEAD_DIM + wide[None, :]
    tl.store(out + place, mixed.to(qkv.dtype.element_ty), mask=real)
