"""What differs between two engines, in words, most important first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    from workbench.engine.contract import Contract

_SHOWN = 8


def differences(a: Contract, b: Contract, *, names: tuple[str, str] = ("A", "B")) -> tuple[str, ...]:
    """Say in sentences what differs between two contracts.

    Parameters
    ----------
    a, b : Contract
        From `read_contract`.
    names : tuple of str
        What to call them.

    Returns
    -------
    tuple of str
        One sentence a difference; one that says so where there is none.
    """
    if a.engine_id == b.engine_id:
        same = "Both are the same engine: equal recipe and equal plan, byte by byte."
        return (same, *_measured(a, b, *names)) if a.digest != b.digest else (same,)
    found = [*_made_of(a, b, *names), *_numbers(a, b, *names), *_runs_on(a, b, *names), *_emits(a, b, *names)]
    found += _measured(a, b, *names)
    return tuple(found) or ("Recipe and plan differ, and no field of the contract says how.",)


def _made_of(a: Contract, b: Contract, one: str, two: str) -> Iterator[str]:
    if a.checkpoint.digest != b.checkpoint.digest:
        yield (
            f"They are made of different weights: {one} of {a.checkpoint.name} ({a.checkpoint.digest[:12]}), "
            f"{two} of {b.checkpoint.name} ({b.checkpoint.digest[:12]}); every number differs."
        )
    if a.tokenizer_digest != b.tokenizer_digest:
        yield "Their tokenizers differ: the same text may become other token ids."
    if a.recipe_digest == b.recipe_digest:
        yield "Their recipes are equal; what was built from them is not."


def _numbers(a: Contract, b: Contract, one: str, two: str) -> Iterator[str]:
    p, q = a.precision, b.precision
    if p.name != q.name:
        yield f"Precision: {one} is {p.name}, {two} is {q.name}."
    elif p.method != q.method:
        yield (
            f"How weights or ranges are made: version {p.method or 'not stated'} in {one}, "
            f"{q.method or 'not stated'} in {two}."
        )
    for what in ("weights", "activations", "accumulators"):
        x, y = getattr(p, what), getattr(q, what)
        if x != y:
            yield f"{what.capitalize()}: {x} in {one}, {y} in {two}."
    for only, other, here in ((p, q, one), (q, p, two)):
        more = sorted(set(only.kept_layers) - set(other.kept_layers))
        if more:
            yield f"Kept in higher precision only in {here}: {_few(more)}."
    if p.scales_digest != q.scales_digest:
        yield f"Quantisation scales: {_scales(p.scales_digest)} in {one}, {_scales(q.scales_digest)} in {two}."


def _scales(digest: str | None) -> str:
    return "none from calibration" if digest is None else digest[:12]


def _few(names: list[str]) -> str:
    shown = ", ".join(names[:_SHOWN])
    return shown if len(names) <= _SHOWN else f"{shown} and {len(names) - _SHOWN} more"


def _runs_on(a: Contract, b: Contract, one: str, two: str) -> Iterator[str]:
    x, y = a.backend, b.backend
    if x.name != y.name:
        yield f"Backend: {x.name} {x.version} in {one}, {y.name} {y.version} in {two}."
    elif x.version != y.version:
        yield f"Version of {x.name}: {x.version} in {one}, {y.version} in {two}."
    if x.target != y.target:
        yield f"Compiled for {x.target} in {one}, for {y.target} in {two}."
    yield from _cards(x.card or {}, y.card or {}, one, two)
    for tool in sorted(set(a.build.tools) | set(b.build.tools)):
        left, right = a.build.tools.get(tool, "none"), b.build.tools.get(tool, "none")
        if left != right:
            yield f"Built with {tool} {left} in {one}, {right} in {two}."
    for field, words in (("runs", "Kernels"), ("machine", "Machine"), ("processor", "Processor")):
        left, right = getattr(x, field) or "not stated", getattr(y, field) or "not stated"
        if left != right:
            yield f"{words} at the build: {left} in {one}, {right} in {two}."
    for key in sorted(set(x.options) | set(y.options)):
        left, right = x.options.get(key, "not set"), y.options.get(key, "not set")
        if left != right:
            yield f"Option {key}: {_short(left)} in {one}, {_short(right)} in {two}."


def _cards(x: dict[str, Any], y: dict[str, Any], one: str, two: str) -> Iterator[str]:
    left, right = str(x.get("name", "no card")), str(y.get("name", "no card"))
    if left != right:
        yield f"Card of the build: {left} in {one}, {right} in {two}."
    for key in sorted((set(x) & set(y)) - {"name", "table_read_back"}):
        if x[key] != y[key]:
            yield f"Card, {key}: {_short(x[key])} in {one}, {_short(y[key])} in {two}."


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _emits(a: Contract, b: Contract, one: str, two: str) -> Iterator[str]:
    for only, here in ((set(a.taps) - set(b.taps), one), (set(b.taps) - set(a.taps), two)):
        if only:
            yield f"Taps only in {here}: {_few(sorted(only))}."
    if a.positions != b.positions:
        yield f"Rows that leave: {a.positions} in {one}, {b.positions} in {two}."
    types = ({row.name: row.dtype for row in contract.outputs} for contract in (a, b))
    left, right = types
    changed = sorted(name for name in set(left) & set(right) if left[name] != right[name])
    if changed:
        yield f"Dtype of outputs: {left[changed[0]]} in {one}, {right[changed[0]]} in {two}, for {_few(changed)}."
    if (a.cache is None) != (b.cache is None):
        yield f"Only {one if a.cache else two} writes the key-value cache and one greedy token."
    limits = (
        ("max_tokens", "Longest prompt, in tokens"),
        ("tokens_per_pass", "Largest pass, in tokens"),
        ("prompts_per_pass", "Largest pass, in prompts"),
    )
    for field, words in limits:
        x, y = getattr(a.limits, field), getattr(b.limits, field)
        if x != y:
            yield f"{words}: {x or 'any number'} in {one}, {y or 'any number'} in {two}."


def _measured(a: Contract, b: Contract, one: str, two: str) -> Iterator[str]:
    for tap in (tap for tap in a.taps if tap in b.taps):
        x, y = a.verification.taps[tap], b.verification.taps[tap]
        if x != y:
            yield (
                f"Error at {tap}: mean {x.mean_relative_error:.3g}, worst {x.worst_relative_error:.3g} in {one}; "
                f"mean {y.mean_relative_error:.3g}, worst {y.worst_relative_error:.3g} in {two}."
            )
    if a.build.plan_bytes != b.build.plan_bytes:
        yield f"Size: {a.build.plan_bytes / 1e6:,.1f} MB in {one}, {b.build.plan_bytes / 1e6:,.1f} MB in {two}."
    speeds = (a.build.tokens_per_second, b.build.tokens_per_second)
    if speeds[0] and speeds[1] and speeds[0] != speeds[1]:
        yield f"Speed at build: {speeds[0]:,.0f} tokens per second in {one}, {speeds[1]:,.0f} in {two}."
