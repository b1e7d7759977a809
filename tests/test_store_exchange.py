"""Runs out to plain formats and back; hostile and broken files are refused without being executed."""

from __future__ import annotations

import io
import json
import zipfile
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from safetensors.numpy import load_file, save_file
from store_toys import TAPS, canary, fill, make_prompts, new_run

from workbench.errors import ContractError, RunExists, StoreError
from workbench.store import Run, open_run
from workbench.store.exchange import export_run
from workbench.store.importing.archive import import_zip
from workbench.store.importing.npy import import_npy
from workbench.store.importing.saelens import import_saelens, tap_of_hook
from workbench.store.importing.vllm import import_vllm
from workbench.store.verifying import verify_run

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    writer = new_run(tmp_path_factory.mktemp("exchange") / "run")
    fill(writer)
    return writer.close()


@pytest.mark.parametrize("tap", TAPS, ids=lambda tap: tap.dtype)
def test_npy_is_what_numpy_reads(run: Run, tmp_path: Path, tap) -> None:
    out = export_run(run, tmp_path / "rows.npy", format="npy", taps=(tap.name,))
    np.testing.assert_array_equal(np.load(out, allow_pickle=False), canary(tap, 0, run.n_rows))
    with pytest.raises(RunExists):
        export_run(run, out, format="npy", taps=(tap.name,))
    with pytest.raises(ContractError, match="one tap"):
        export_run(run, tmp_path / "other.npy", format="npy")


def test_safetensors_keeps_the_storage_dtype(run: Run, tmp_path: Path) -> None:
    found = load_file(export_run(run, tmp_path / "run.safetensors", format="safetensors"))
    for tap in TAPS:
        np.testing.assert_array_equal(found[tap.name].astype(np.float32), canary(tap, 0, run.n_rows))
    assert found["blocks.0.resid_post"].dtype.name == "bfloat16"
    np.testing.assert_array_equal(found["tokens"], run.tokens)
    np.testing.assert_array_equal(found["row_prompt"], run.prompt_of_rows())


def test_parquet_holds_ids_text_and_coordinates(run: Run, tmp_path: Path) -> None:
    points = np.random.default_rng(0).normal(size=(run.n_rows, 2)).astype(np.float32)
    out = export_run(
        run, tmp_path / "rows.parquet", format="parquet", taps=("final_norm",), coordinates={"pca": points}
    )
    table = pq.read_table(out)
    assert table.num_rows == run.n_rows
    assert table.column("id").to_pylist() == [run.prompts.ids[at] for at in run.prompt_of_rows()]
    assert table.column("token").to_pylist() == run.tokens.tolist()
    np.testing.assert_array_equal(table.column("pca.1").to_numpy(), points[:, 1])
    np.testing.assert_array_equal(np.array(table.column("rows.final_norm").to_pylist()), canary(TAPS[0], 0, run.n_rows))
    with pytest.raises(ContractError):
        export_run(run, tmp_path / "x.parquet", format="parquet", coordinates={"pca": points[1:]})
    assert not (tmp_path / "x.parquet").exists()


def test_a_zip_is_sent_and_checked(run: Run, tmp_path: Path) -> None:
    out = export_run(run, tmp_path / "run.zip", format="zip")
    again = import_zip(out, out=tmp_path / "run")
    for tap in TAPS:
        np.testing.assert_array_equal(again.tap(tap.name)[:], canary(tap, 0, run.n_rows))
    data = bytearray(out.read_bytes())
    at = data.index(canary(TAPS[0], 0, 4).tobytes())
    data[at + 2] ^= 1
    (tmp_path / "bad.zip").write_bytes(data)
    with pytest.raises(StoreError):
        import_zip(tmp_path / "bad.zip", out=tmp_path / "bad")
    assert not (tmp_path / "bad").exists()


@pytest.mark.parametrize("name", ["../x", "run/../../x", "/etc/x", "run/taps/../../x", "run/a/b", "run/CON", "run/x y"])
def test_a_zip_with_other_names_is_refused(run: Run, tmp_path: Path, name: str) -> None:
    out = export_run(run, tmp_path / "run.zip", format="zip")
    with zipfile.ZipFile(out, "a") as archive:
        archive.writestr(name, b"x")
    with pytest.raises(StoreError, match="only the files of one run"):
        import_zip(out, out=tmp_path / "in" / "run")
    assert not (tmp_path / "in").exists()


def test_npy_comes_back_as_a_run(tmp_path: Path) -> None:
    rows = np.random.default_rng(1).normal(size=(40, 6))
    for dtype, stored in (("<f4", "F32"), ("<f2", "F16"), ("<f8", "F32")):
        np.save(tmp_path / f"{stored}{dtype[1:]}.npy", rows.astype(dtype))
        out = tmp_path / f"run{dtype[1:]}"
        found = import_npy(tmp_path / f"{stored}{dtype[1:]}.npy", out=out, tap="final_norm", prompts=make_prompts())
        assert found.tap("final_norm").storage_dtype == stored
        np.testing.assert_array_equal(found.tap("final_norm")[:], rows.astype(dtype).astype(np.float32))
        assert found.prompts.ids == make_prompts().ids
        assert found.engine_id is None
        assert set(found.provenance["unknown"]) >= {"norm_point", "padding_side", "tokens"}
        assert verify_run(out)
    np.save(tmp_path / "short.npy", rows[1:].astype("<f4"))
    with pytest.raises(ContractError, match="40 rows"):
        import_npy(tmp_path / "short.npy", out=tmp_path / "no", tap="final_norm", prompts=make_prompts())


def bad_npys() -> dict[str, bytes]:
    good = io.BytesIO()
    np.save(good, np.zeros((40, 6), dtype="<f4"))
    whole = good.getvalue()
    objects = io.BytesIO()
    np.save(objects, np.array([[print]], dtype=object), allow_pickle=True)
    header = b"{'descr': '<f4', 'fortran_order': False, 'shape': (1099511627776, 6), }"
    text = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header
    return {
        "empty": b"", "cut": whole[:-1], "long": whole + b"x", "magic": b"x" + whole, "objects": objects.getvalue(),
        "terabytes": text, "deep": b"\x93NUMPY\x01\x00\xff\x0f" + b"(" * 4095,
        "version": whole[:6] + b"\x09" + whole[7:],
    }  # fmt: skip


@pytest.mark.parametrize("name", sorted(bad_npys()))
def test_a_hostile_npy_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "rows.npy").write_bytes(bad_npys()[name])
    with pytest.raises(StoreError):
        import_npy(tmp_path / "rows.npy", out=tmp_path / "run", tap="final_norm", prompts=make_prompts())
    assert not (tmp_path / "run").exists()


def test_vllm_files_come_in_one_request_each(tmp_path: Path) -> None:
    import ml_dtypes

    generator = np.random.default_rng(2)
    states = [generator.normal(size=(n, 3, 8)).astype(ml_dtypes.bfloat16) for n in (4, 1, 6)]
    ids = [np.arange(len(one), dtype=np.int64) + 5 for one in states]
    (tmp_path / "states").mkdir()
    for at, (one, row) in enumerate(zip(states, ids, strict=True)):
        save_file({"hidden_states": one, "token_ids": row}, tmp_path / "states" / f"{at}.safetensors")
    run = import_vllm(tmp_path / "states", layers=[0, 8, 30], out=tmp_path / "run")
    assert run.taps == ("embed", "blocks.7.resid_post", "blocks.29.resid_post")
    assert run.tokens.tolist() == np.concatenate(ids).tolist()
    for at, name in enumerate(run.taps):
        want = np.concatenate([one[:, at] for one in states]).astype(np.float32)
        np.testing.assert_array_equal(run.tap(name)[:], want)
        assert run.tap(name).storage_dtype == "BF16"
    assert "before the final norm" in run.provenance["unknown"]["norm_point"]
    with pytest.raises(ContractError, match="layer=2"):
        import_vllm(tmp_path / "states", layers=[0, 8], out=tmp_path / "no")
    save_file({"hidden_states": states[0][:2], "token_ids": ids[0]}, tmp_path / "states" / "1.safetensors")
    with pytest.raises(ContractError, match=r"1\.safetensors"):
        import_vllm(tmp_path / "states", layers=[0, 8, 30], out=tmp_path / "partial")
    assert open_run(tmp_path / "partial").status == "writing"


def write_arrow(folder: Path, tables: list[pa.Table]) -> None:
    folder.mkdir()
    names = [f"data-{at:05d}-of-{len(tables):05d}.arrow" for at in range(len(tables))]
    for name, table in zip(names, tables, strict=True):
        with pa.OSFile(str(folder / name), "wb") as file, pa.ipc.new_stream(file, table.schema) as out:
            out.write_table(table)
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": name} for name in names]}))


def test_a_saelens_store_comes_in_by_window(tmp_path: Path) -> None:
    rows = np.random.default_rng(3).normal(size=(5, 4, 6)).astype(np.float32)
    ids = np.arange(20, dtype=np.int32).reshape(5, 4)
    table = pa.table(
        {
            "blocks.3.hook_resid_pre": pa.array(rows.tolist(), pa.list_(pa.list_(pa.float32()))),
            "token_ids": pa.array(ids.tolist(), pa.list_(pa.int32(), 4)),
        }
    )
    write_arrow(tmp_path / "store", [table.slice(0, 3), table.slice(3)])
    run = import_saelens(tmp_path / "store", out=tmp_path / "run")
    assert run.taps == ("blocks.3.resid_pre",)
    np.testing.assert_array_equal(run.tap("blocks.3.resid_pre")[:], rows.reshape(-1, 6))
    assert run.tokens.tolist() == ids.reshape(-1).tolist()
    assert run.n_prompts == 5
    ragged = table.set_column(0, "x", pa.array([*rows[:4].tolist(), rows[4, :3].tolist()]))
    write_arrow(tmp_path / "ragged", [ragged])
    with pytest.raises(StoreError, match="equal lists"):
        import_saelens(tmp_path / "ragged", out=tmp_path / "no")
    (tmp_path / "store" / "state.json").write_text(json.dumps({"_data_files": [{"filename": "../run/x.arrow"}]}))
    with pytest.raises(StoreError, match="own folder"):
        import_saelens(tmp_path / "store", out=tmp_path / "no")


def test_hook_names_become_tap_names() -> None:
    assert tap_of_hook("blocks.11.hook_mlp_out") == "blocks.11.mlp_out"
    assert tap_of_hook("hook_embed") == "embed"
    assert tap_of_hook("ln_final.hook_normalized") == "ln_final.hook_normalized"
    assert tap_of_hook("../Etc/Passwd") == "etc_passwd"
    with pytest.raises(ContractError):
        tap_of_hook("///")
