# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 2. Engines and contracts
#
# **What you will see.** A recipe decides an engine, and a contract says what the engine was measured to do. Four
# engines of one checkpoint, from float32 to 4 bits a weight, and what a contract refuses: a changed file, a changed
# number, another engine than the expected one, and prompts that the engine cannot read.
#
# **How long it takes.** Under a minute on two cores, once the shared engines exist; making them takes some minutes.

# %%
import json
import os
import shutil
import tempfile
from pathlib import Path

import shared

import workbench as wb
from workbench.engine import differences, lines_of, table_of
from workbench.errors import EngineRefused, PromptError, TapError, TokenError

# %% [markdown]
# ## A recipe
#
# Everything that decides an engine, frozen. Equal recipes have equal digests; one other bit of precision is another
# engine. The checkpoint enters by its content, never by its path.

# %%
checkpoint = wb.open_checkpoint(shared.MODEL)
recipe = wb.Recipe(checkpoint=checkpoint, taps=("final_norm",), max_tokens=64)
assert recipe.digest == wb.Recipe(checkpoint=checkpoint, taps=("final_norm",), max_tokens=64).digest
assert recipe.digest != wb.Recipe(checkpoint=checkpoint, taps=("final_norm",), max_tokens=65).digest
print(checkpoint.name, "stored as", checkpoint.source_quantization)
print(json.dumps(recipe.to_json(), indent=1)[:600])

# %%
try:
    wb.Recipe(checkpoint=checkpoint, taps=("blocks.99.resid_post",))
except TapError as error:
    print(error)
else:
    raise AssertionError("a tap that does not exist must be refused")

# %% [markdown]
# ## A sequence of builds
#
# Each engine was compared, when it was built, with a float32 reference: the mean over all rows, and the worst token.

# %%
built = shared.sequence()
error = {one.step.name: one.contract.verification.taps["final_norm"] for one in built if one.contract}
print("\n".join(lines_of(table_of(built))))

# %% [markdown]
# **Finding.** The checkpoint was published with 4-bit weights. An engine that keeps them on the grid on which they
# were published is about as near to the reference as one with 8-bit weights; 4 bits on a new grid cost several times
# more.

# %%
assert error["fp32"].worst_relative_error < 1e-4
assert error["int8"].mean_relative_error < 0.06
assert error["int4-grid"].mean_relative_error < 2 * error["int8"].mean_relative_error
new_grid = error["int4"].mean_relative_error if "int4" in error else float("inf")  # refused if beyond its tolerance
assert new_grid > 2 * error["int4-grid"].mean_relative_error
for name, one in error.items():
    print(f"{name:10} {one.mean_relative_error:8.2g} mean, {one.worst_relative_error:8.2g} worst token")

# %% [markdown]
# What differs between two engines, in words:

# %%
fp32, int8 = (one.contract for one in built[:2])
said = differences(fp32, int8, names=("the first", "the second"))
assert any("int8" in sentence for sentence in said)
print("\n".join(said))

# %% [markdown]
# ## What a contract refuses
#
# A copy of the 8-bit engine (its files are linked, not copied), changed in one place at a time. Opening hashes every
# file before anything of it is loaded.


# %%
def refused(folder: Path, expect: str | None = None) -> str:
    """Open an engine that must be refused; give the reason."""
    try:
        wb.open_engine(folder, expect=expect)
    except EngineRefused as error:
        return str(error)
    raise AssertionError(f"{folder.name} was opened")


def rewrite(path: Path, data: bytes) -> None:
    path.unlink()  # the original keeps its bytes: only this name of it goes
    path.write_bytes(data)


engine = shared.engine("int8")
print(engine)
with tempfile.TemporaryDirectory(dir=shared.DATA) as scratch:
    copy = Path(shutil.copytree(engine.path, Path(scratch) / "copy", copy_function=os.link))
    assert wb.open_engine(copy).id == engine.id

    tokenizer = (copy / "tokenizer.json").read_bytes()
    rewrite(copy / "tokenizer.json", tokenizer[:-1] + b" ")
    print("\nOne byte of the tokenizer:", refused(copy))
    rewrite(copy / "tokenizer.json", tokenizer)

    contract = (copy / "contract.json").read_bytes()
    mean = repr(error["int8"].mean_relative_error).encode()
    assert mean in contract
    rewrite(copy / "contract.json", contract.replace(mean, b"0.001"))
    print("\nA flattering number:", refused(copy))
    rewrite(copy / "contract.json", contract)

    print("\nAnother engine than expected:", refused(copy, expect=fp32.engine_id))

# %% [markdown]
# And prompts that the engine was not built for, before any row is computed:

# %%
asked = {
    "longer than 64 tokens": wb.load_prompts(["far " * 100]),
    "an id beyond the vocabulary": wb.load_prompts(token_ids=[[1, 2, 49_152]]),
}
with tempfile.TemporaryDirectory() as scratch:
    for what, prompts in asked.items():
        try:
            wb.extract(prompts, engine, out=Path(scratch) / "run", progress=False)
        except (TokenError, PromptError) as error:
            print(f"{what}: {error}\n")
        else:
            raise AssertionError(f"{what} was read")
    assert not (Path(scratch) / "run").exists()
print("nothing was written")
