"""Storage types against ml_dtypes and arithmetic; nothing is lost or changed in silence."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from workbench.errors import ContractError
from workbench.store.dtypes import STORAGE_TYPES, count_special, narrow, special_rows, storage_type, widen


@pytest.mark.parametrize("name", sorted(STORAGE_TYPES))
def test_every_bit_pattern_survives_a_round_trip(name: str) -> None:
    kind = storage_type(name)
    bits = kind.itemsize * 8
    raw = np.arange(1 << min(bits, 16), dtype=np.uint64).astype(kind.bits) << np.array(
        max(0, bits - 16), dtype=kind.bits
    )
    raw = raw.reshape(-1, 64)
    wide = widen(raw, kind)
    with np.errstate(invalid="ignore"):
        want = raw.view(kind.array).astype(np.float32)
    np.testing.assert_array_equal(wide, want)
    out = np.empty_like(raw)
    narrow(wide, kind, out)
    finite = np.isfinite(wide)
    np.testing.assert_array_equal(out[finite], raw[finite])
    assert np.isnan(widen(out, kind)[np.isnan(wide)]).all()


@given(arrays(np.float32, (5, 7), elements=st.floats(width=32, allow_nan=True, allow_infinity=True)))
def test_narrow_is_the_nearest_value_and_counts_the_rest(values: np.ndarray) -> None:
    for kind in STORAGE_TYPES.values():
        out = np.empty(values.shape, dtype=kind.bits)
        non_finite, saturated = narrow(values, kind, out)
        got = widen(out, kind)
        largest = float(widen(np.array([kind.special - 1], dtype=kind.bits), kind)[0])
        finite = np.isfinite(values)
        assert non_finite == int((~finite).sum()) == count_special(out, kind)
        with np.errstate(over="ignore", invalid="ignore"):
            rounded = values.astype(kind.array).astype(np.float32)
        over = finite & ~np.isfinite(rounded)
        assert saturated == int(over.sum())
        np.testing.assert_array_equal(got[over], np.copysign(np.float32(largest), values[over]))
        np.testing.assert_array_equal(got[finite & ~over], rounded[finite & ~over])
        assert not np.isfinite(got[~finite]).any()
        assert special_rows(out, kind).tolist() == np.flatnonzero((~finite).any(axis=1)).tolist()


def test_known_values() -> None:
    values = np.array([[500.0, -500.0, 448.0, 464.0, np.inf, np.nan, 1.0, 70000.0]], dtype=np.float32)
    out = np.empty(values.shape, dtype=np.uint8)
    assert narrow(values, storage_type("F8_E4M3"), out) == (2, 3)
    got = widen(out, storage_type("F8_E4M3"))
    np.testing.assert_array_equal(got[0, [0, 1, 2, 3, 6, 7]], [448, -448, 448, 448, 1, 448])
    half = np.empty(values.shape, dtype=np.uint16)
    assert narrow(values, storage_type("F16"), half) == (2, 1)
    assert widen(half, storage_type("F16"))[0, 7] == 65504


def test_values_in_the_storage_type_are_kept_bit_for_bit() -> None:
    values = np.array([[1.5, -2.25, np.nan]], dtype=ml_dtypes.bfloat16)
    out = np.empty(values.shape, dtype=np.uint16)
    assert narrow(values, storage_type("BF16"), out) == (1, 0)
    assert out.tobytes() == values.tobytes()


def test_an_unknown_type_is_refused_by_name() -> None:
    with pytest.raises(ContractError, match="F64"):
        storage_type("F64")
