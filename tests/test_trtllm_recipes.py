"""From a recipe to the command of `trtllm-build`, and from the finished engine to its contract."""

import json
import shlex

import pytest

import workbench as wb
from workbench.cli import main
from workbench.engine.trtllm.contract import CONTRACT_FILE, make_contract, read_contract, write_contract
from workbench.engine.trtllm.recipes import command_of, conversion_of
from workbench.errors import ContractError, EngineError, EngineRefused


@pytest.fixture
def recipe(toy_checkpoint):
    def make(**changes):
        options = {"version": "0.16.0", "prompts_per_pass": 8} | changes.pop("options", {})
        chosen = {"precision": "bf16", "positions": "all", "max_tokens": 64, "options": options} | changes
        return wb.Recipe(checkpoint=toy_checkpoint, backend="tensorrt_llm", **chosen)

    return make


@pytest.fixture
def folder(tmp_path, toy_checkpoint):
    """Write what `trtllm-build` would have written for the recipe above, with changes."""

    def make(*, model=(), build=(), plugins=(), version="0.16.0"):
        config = toy_checkpoint.config
        pretrained = {
            "architecture": "LlamaForCausalLM",
            "dtype": "bfloat16",
            "vocab_size": config.d_vocab,
            "hidden_size": config.d_model,
            "num_hidden_layers": config.n_layers,
            "position_embedding_type": "rope_gpt_neox",
        }
        plugin = {"gpt_attention_plugin": "auto", "gemm_plugin": None, "remove_input_padding": True}
        sizes = {"max_batch_size": 8, "max_input_len": 64, "max_seq_len": 64, "kv_cache_type": "DISABLED"}
        whole = {
            "version": version,
            "pretrained_config": pretrained | dict(model),
            "build_config": sizes | dict(build) | {"plugin_config": plugin | dict(plugins)},
        }
        (tmp_path / "config.json").write_text(json.dumps(whole))
        (tmp_path / "rank0.engine").write_bytes(b"engine")
        return tmp_path

    return make


def words(command):
    return dict(zip(command[1::2], command[2::2], strict=True))


def test_the_command_says_what_the_recipe_says(recipe):
    found = words(command_of(recipe(), checkpoint_dir="from", output_dir="to"))
    assert found["--kv_cache_type"] == "disabled"
    assert found["--max_batch_size"] == "8"
    assert found["--max_input_len"] == found["--max_seq_len"] == "64"
    assert found["--max_num_tokens"] == found["--opt_num_tokens"] == "512"
    assert found["--gemm_plugin"] == "disable"
    assert (found["--checkpoint_dir"], found["--output_dir"]) == ("from", "to")


def test_the_three_builds_of_the_sequence_differ_where_they_should(recipe):
    base = recipe(options={"cache": "paged", "runner": "executor"})
    kept = words(command_of(base, checkpoint_dir="a", output_dir="b"))
    assert (kept["--kv_cache_type"], kept["--max_seq_len"]) == ("paged", "65")
    for plugin, word in ((False, "disable"), (True, "fp8")):
        eight = recipe(precision="fp8", options={"gemm_plugin": plugin})
        assert words(command_of(eight, checkpoint_dir="a", output_dir="b"))["--gemm_plugin"] == word
        assert "--qformat" in conversion_of(eight, model_dir="m", output_dir="a")
    assert conversion_of(recipe(), model_dir="m", output_dir="a") == ()


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"options": {"version": None}}, "version must name"),
        ({"options": {"layout": "ragged"}}, "layout must be one of packed, padded, plain"),
        ({"options": {"batch": 3}}, "options of tensorrt_llm are version"),
        ({"options": {"prompts_per_pass": 0}}, "prompts_per_pass must be a whole number"),
        ({"options": {"prompts_per_pass": True}}, "prompts_per_pass must be a whole number"),
        ({"options": {"cache": "paged"}}, "raw runtime must be given an engine without a cache"),
        ({"options": {"version": "0.9.0"}}, "must be of 0.13"),
        ({"taps": ("blocks.0.resid_post",)}, "taps must be"),
        ({"precision": "int8"}, "precision must be one of"),
        ({"keep": ("*.down",)}, "said to the quantiser"),
    ],
)
def test_what_it_does_not_build_is_refused(recipe, changes, text):
    with pytest.raises(ContractError, match=text):
        command_of(recipe(**changes), checkpoint_dir="a", output_dir="b")


def test_a_build_whose_states_the_executor_would_not_give_is_told_so(toy_checkpoint, capsys):
    words = [
        "trtllm",
        "command",
        str(toy_checkpoint.path),
        "--cache",
        "paged",
        "--runner",
        "executor",
    ]
    words += ["--checkpoint-dir", "a", "--output-dir", "b", "--version"]
    assert main([*words, "0.16.0"]) == 0
    assert "gives no states" in capsys.readouterr().err
    assert main([*words, "0.17.0"]) == 0
    assert not capsys.readouterr().err


def test_a_recipe_of_another_backend_is_refused(toy_checkpoint):
    with pytest.raises(ContractError, match="backend must be tensorrt_llm"):
        command_of(wb.Recipe(checkpoint=toy_checkpoint), checkpoint_dir="a", output_dir="b")


def test_build_names_the_command(recipe, tmp_path):
    with pytest.raises(EngineError, match=r"trtllm-build.*workbench trtllm command"):
        wb.build(recipe(), tmp_path)


def test_the_contract_says_what_the_engine_is(recipe, folder):
    made = make_contract(recipe(), folder())
    write_contract(made, folder())
    read = read_contract(folder())
    assert read == made
    assert read.recipe_digest == recipe().digest
    assert [row.name for row in read.inputs][:3] == ["input_ids", "position_ids", "last_token_ids"]
    assert {row.name: row.place for row in read.inputs}["host_request_types"] == "host"
    assert [(row.name, row.axes) for row in read.outputs][1] == ("final_hidden_states", ("token", "d_model"))
    assert read.doorbell
    assert read.executor is None
    assert set(read.files) == {"config.json", "rank0.engine"}


def test_an_engine_of_an_unpatched_tree_is_refused(recipe, folder):
    place = folder()
    (place / "rank0.engine").write_bytes(b"..input_ids..logits..")
    with pytest.raises(
        EngineRefused, match=r"must name the output final_hidden_states; got none in rank0\.engine.*patch"
    ):
        make_contract(recipe(), place)
    (place / "rank0.engine").write_bytes(b"..input_ids..logits..final_hidden_states..")
    assert make_contract(recipe(), place).tap_named
    (place / "rank0.engine").write_bytes(b"nothing in plain letters")
    assert not make_contract(recipe(), place).tap_named
    (place / "rank0.engine").write_bytes(b"")
    with pytest.raises(EngineRefused, match="must hold a plan"):
        make_contract(recipe(), place)


def test_the_vendor_executor_keeps_the_doorbell_off(recipe, folder):
    new = {"version": "0.20.0", "runner": "executor", "cache": "paged"}
    made = make_contract(
        recipe(options=new), folder(version="0.20.0", build={"kv_cache_type": "PAGED", "max_seq_len": 65})
    )
    assert not made.doorbell
    assert made.executor["outputs"] == [{"name": "final_hidden_states", "gather_context": True}]
    assert made.executor["doorbell"] is False
    assert made.inputs == ()
    with pytest.raises(ContractError, match="executor must be of TensorRT-LLM"):
        make_contract(
            recipe(options={"runner": "executor", "cache": "paged"}),
            folder(build={"kv_cache_type": "PAGED", "max_seq_len": 65}),
        )


@pytest.mark.parametrize(
    ("there", "text"),
    [
        ({"version": "0.15.0"}, "version of the engine must be 0.16.0"),
        ({"model": {"dtype": "float16"}}, "dtype of the engine must be bfloat16"),
        ({"model": {"hidden_size": 8}}, "d_model of the engine"),
        ({"model": {"num_hidden_layers": 2}}, "number of layers of the engine"),
        ({"model": {"quantization": {"quant_algo": "FP8"}}}, "quantisation of the engine must be None"),
        ({"model": {"vocab_size": 3}}, "engine must know"),
        ({"build": {"max_batch_size": 4}}, "max_batch_size of the engine must be 8"),
        ({"build": {"max_input_len": 32}}, "max_input_len of the engine must be 64"),
        ({"build": {"kv_cache_type": "PAGED"}}, "kv_cache_type of the engine must be DISABLED"),
        ({"plugins": {"remove_input_padding": False}}, "layout of the engine must be packed"),
        ({"plugins": {"gemm_plugin": "auto"}}, "gemm_plugin of the engine must be False"),
    ],
)
def test_an_engine_of_another_recipe_is_refused(recipe, folder, there, text):
    with pytest.raises(EngineRefused, match=text):
        make_contract(recipe(), folder(**there))


def test_a_missing_rank_is_refused(recipe, folder):
    place = folder()
    (place / "rank0.engine").unlink()
    with pytest.raises(EngineRefused, match="an engine file for each of 1 ranks"):
        make_contract(recipe(), place)


def test_changes_after_the_contract_are_found(recipe, folder):
    place = folder()
    path = write_contract(make_contract(recipe(), place), place)
    (place / "rank0.engine").write_bytes(b"other")
    with pytest.raises(EngineRefused, match=r"rank0\.engine must have the sha256"):
        read_contract(place)
    (place / "rank0.engine").write_bytes(b"engine")
    path.write_bytes(path.read_bytes().replace(b'"raw"', b'"executor"'))
    with pytest.raises(EngineRefused, match="digest"):
        read_contract(place)
    path.write_bytes(b"[]")
    with pytest.raises(EngineRefused, match="must be a contract"):
        read_contract(place)


def test_the_command_line_prints_writes_and_checks(toy_checkpoint, folder, capsys):
    model = str(toy_checkpoint.path)
    said = ["--version", "0.16.0", "--precision", "bf16", "--max-tokens", "64", "--prompts-per-pass", "8"]
    assert main(["trtllm", "command", model, *said, "--checkpoint-dir", "my model", "--output-dir", "out"]) == 0
    printed = shlex.split(capsys.readouterr().out.replace("\\\n", " "))
    assert printed[0] == "trtllm-build"
    assert words(printed)["--checkpoint_dir"] == "my model"
    place = folder()
    assert main(["trtllm", "contract", model, str(place), *said]) == 0
    assert capsys.readouterr().out.strip().endswith(CONTRACT_FILE)
    assert main(["trtllm", "check", str(place)]) == 0
    assert "run by raw; proven: nothing" in capsys.readouterr().out
    (place / "config.json").write_text("{}")
    assert main(["trtllm", "check", str(place)]) == 2
