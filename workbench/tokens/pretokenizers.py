r"""How each family cuts a text into words before byte-pair merges run: the rules behind `tokenizer.ggml.pre`.

A rule is a chain of cutters. Each takes the pieces of the one before, isolates what it matches and keeps what lies
between; no piece is ever joined again. The rules are those of llama.cpp (src/llama-vocab.cpp and src/unicode.cpp),
which defines the names: where it approximates a family's own expression, for instance by leaving combining marks out
of `\p{Lu}`, the same approximation stands here, for a GGUF file is run with its rules. Code points that Unicode added
lately may be classed differently by the two tables.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

import regex

from workbench.errors import UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# \s of the family's engine, written out: Python's would add U+001C to U+001F.
_SPACES = r"\t-\r\x20\x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
_S = f"[{_SPACES}]"
_NOT_SPACE = f"[^{_SPACES}]"
_HAN_ETC = r"\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff"
# Where an expression names no category, every wide space counts as none of its characters.
_HAN_HANGUL = rf"[[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]--[{_SPACES}]]+"

_BIG = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
_SMALL = r"'s|'t|'re|'ve|'m|'ll|'d"
_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_MARKS = rf" ?[^{_SPACES}\p{{L}}\p{{N}}]+"
_LINES = rf"{_S}*[\r\n]+"
_TAIL = rf"{_S}+(?!{_NOT_SPACE})|{_S}+"

_GPT2 = rf"{_SMALL}| ?\p{{L}}+| ?\p{{N}}+|{_MARKS}|{_TAIL}"
_DIGIT = r"\p{N}"


def _modern(digits: str, *, word: str = _WORD, head: str = _BIG + "|", marks: str = rf"{_MARKS}[\r\n]*") -> str:
    """Shape shared by the families after GPT-2: contraction, word, digits, marks, line ends, spaces."""
    return rf"{head}{word}|{digits}|{marks}|{_LINES}|{_TAIL}"


def _cased(upper: str, lower: str, *, suffix: str, digits: str) -> str:
    """Words cut where the case turns, as GPT-4o and Tekken do."""
    lead = r"[^\r\n\p{L}\p{N}]?"
    word = f"{lead}{upper}*{lower}+{suffix}|{lead}{upper}+{lower}*{suffix}"
    return rf"{word}|{digits}|{_MARKS}[\r\n/]*|{_LINES}|{_TAIL}"


_UPPER, _LOWER = r"[\p{L}--[a-z]]", r"[\p{L}--[A-Z]]"
_UPPER_M, _LOWER_M = r"[[\p{L}\p{M}]--[a-z]]", r"[[\p{L}\p{M}]--[A-Z]]"
_ANY = r"[\p{L}\p{M}]"
_ASCII_MARK = r"[!-/:-@\[-`\{-~]"

_LLAMA3 = _modern(r"\p{N}{1,3}")
_QWEN2 = _modern(r"\p{N}")
# Digits in threes from the right; the first group takes along what stands before it.
_THREES = r"\P{N}*\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))"
_PLAIN_WORDS = (
    rf"{_ASCII_MARK}[A-Za-z]+|[^\r\n\p{{L}}\p{{P}}\p{{S}}]?[\p{{L}}\p{{M}}]+"
    rf"| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_LINES}|{_TAIL}"
)
_DEEPSEEK3 = (r"\p{N}{1,3}", f"[{_HAN_ETC}]+", _PLAIN_WORDS)
_HAN = (
    r"\u4e00-\u9fff\u3400-\u4dbf\uf900-\ufaff"
    r"\U00020000-\U0002a6df\U0002a700-\U0002b73f\U0002b740-\U0002ebef\U0002f800-\U0002fa1f"
)
_ASIAN = (
    r"\u4e00-\u9fff\u3400-\u4dbf\u8c48-\ufaff\u3040-\u30ff\uff65-\uff9f\u2f00-\u2fdf\u0e40-\u0eff"
    r"\u1780-\u17ff\u1000-\u109f\uaa60-\uaa7f\ua9e0-\ua9ff\uac00-\ud7af\u1100-\u11ff"
)
_BLOOM = rf" ?[^(|){_SPACES}.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c]+"
# Cased letters, as the family's own tokenizer.json lists them by range.
_DEEPSEEK_LETTERS = (
    r"A-Za-z\xb5\xc0-\xd6\xd8-\xf6\xf8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af\u0370-\u0373\u0376\u0377\u037b-\u037d"
    r"\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f\u0531-\u0556\u10a0-\u10c5"
    r"\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77\u1d79-\u1d9a\u1e00-\u1f15"
    r"\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d\u1f5f-\u1f7d\u1f80-\u1fb4\u1fb6-\u1fbc"
    r"\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102\u2107"
    r"\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128\u212a-\u212d\u212f-\u2134\u2139\u213c-\u213f\u2145-\u2149"
    r"\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d\ua680-\ua69b\ua722-\ua76f"
    r"\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a"
    r"\U00010400-\U0001044f\U000104b0-\U000104d3\U000104d8-\U000104fb\U00010c80-\U00010cb2\U00010cc0-\U00010cf2"
    r"\U000118a0-\U000118df\U0001e900-\U0001e943"
)

_RULES: dict[str, tuple[str, ...]] = {
    "default": (r"[\p{P}$+<=>\^~|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]"),
    "gpt-2": (_GPT2,),
    "starcoder": (_DIGIT, _GPT2),
    "llama-bpe": (_LLAMA3,),
    "qwen2": (_QWEN2,),
    "qwen35": (
        _modern(
            r"\p{N}", word=rf"[^\r\n\p{{L}}\p{{N}}]?{_ANY}+", marks=rf" ?[^{_SPACES}\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*"
        ),
    ),
    "ufakzeka": (_modern(r"\p{N}", head=""),),
    "minicpm5": (r"\p{N}{1,3}", _modern(r"\p{N}+")),
    "jais-2": (
        _LLAMA3.removesuffix(_TAIL)
        + "|".join(rf"{_S}{{{n}}}(?!{_NOT_SPACE})" for n in (512, 256, 128, 64, 32, 16, 8, 4))
        + rf"|{_S}{{1,2}}(?!{_NOT_SPACE})|{_S}",
    ),
    "falcon": (r"[\p{P}$+<=>\^~|`]+", _GPT2, "[0-9][0-9][0-9]"),
    "bloom": (_BLOOM,),
    "viking": (_BLOOM, _DIGIT),
    "deepseek-llm": (
        r"[\r\n]",
        rf"{_S}?[{_DEEPSEEK_LETTERS}]+",
        rf"{_S}?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3001-\u3002]+",
        rf"{_S}+\Z",
        _HAN_HANGUL,
        r"\p{N}+",
    ),
    "deepseek-coder": (r"[\r\n]", rf"{_S}?\p{{L}}+", rf"{_S}?\p{{P}}+", _HAN_HANGUL, _DIGIT),
    "deepseek-v3": _DEEPSEEK3,
    "tekken": (_cased(_UPPER, _LOWER, suffix="", digits=r"\p{N}"),),
    "gpt-4o": (_cased(_UPPER, _LOWER, suffix=f"{_BIG}?", digits=r"\p{N}{1,3}"),),
    "granite-embed-multi-97m": (_cased(_UPPER_M, _LOWER_M, suffix=f"{_BIG}?", digits=r"\p{N}{1,3}"),),
    "tiny_aya": (
        _THREES,
        _cased(_ANY, _ANY, suffix=f"{_BIG}?", digits=r"\p{N}{1,3}"),
    ),
    "youtu": (
        (
            r"[\uac00-\ud7a3\u3131-\u318e]+"
            r"|[\uff01\u2026\u201c\u201d\u2018\u2019\u2014\uff1a\uff1b\uff0c\u3001-\u303f\ufe30-\ufe4f]+"
            rf"|[\u3105-\u312f]+|[{_HAN_ETC}]+"
        ),
        _cased(_ANY, _ANY, suffix=f"{_BIG}?", digits=r"\p{N}"),
    ),
    "bailingmoe": (rf"'(?:[sSdDmMtT]|[lL][lL]|[vV][eE]|[rR][eE])|{_WORD}|\p{{N}}|{_MARKS}[\r\n]*|{_S}*[\r\n]|{_TAIL}",),
    "seed-coder": (_modern(r"\p{N}", marks=rf" ?[^{_SPACES}\p{{L}}\p{{N}}\r\n]+"),),
    "exaone-moe": (
        (
            rf"{_BIG}|[^\r\n\p{{L}}\p{{N}}]?(?:\p{{L}}\p{{M}}*(?: \p{{L}}\p{{M}}*)*)+|\p{{N}}"
            rf"|{_MARKS}[\r\n/]?|{_S}*[\r\n]|{_TAIL}"
        ),
    ),
    "superbpe": (r"\p{N}+", r"(?=(?:[0-9]{3})+(?![0-9]))"),
    "chameleon": (
        "<sentinel:[0-9]+>",
        "IMGIMG[A-I]{1,4}Z",
        r"[\t\n]|    |  ",
        _DIGIT,
        r"[\p{P}!-/:-@\[-`\{-~]",
        _GPT2,
    ),
    "afmoe": (_THREES, f"[{_ASIAN}]+", _PLAIN_WORDS),
    "kimi-k2": (
        _modern(r"\p{N}{1,3}", word=rf"[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}--[{_HAN}]]+{_BIG}?", head=f"[{_HAN}]+|"),
    ),
    "lines": (r"[^\n]+|\n+",),
    "laguna": (r"[^\n]+|\n+", _QWEN2),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class PreTokenizer:
    """One rule of `tokenizer.ggml.pre`.

    Attributes
    ----------
    name : str
        As the file declares it.
    rule : str
        The chain of cutters that it names.
    ignore_merges : bool
        Whether a word that is a token as it stands is taken whole, merges unseen.
    add_bos : bool
        Whether BOS comes first where the file does not say.
    raw : bool
        Whether merges run over characters with U+2581 for the space, not over bytes in the printable alphabet.
    """

    name: str
    rule: str
    ignore_merges: bool = False
    add_bos: bool = False
    raw: bool = False

    def words(self, text: str) -> list[str]:
        """Cut `text` into words; they join to the text again."""
        words = [text]
        for cutter in _cutters(self.rule):
            words = [piece for word in words for piece in cutter(word)]
        return words


def _named(names: str) -> tuple[str, ...]:
    return tuple(names.split())


_NAMES: dict[str, tuple[str, ...]] = {
    "default": ("default",),
    "gpt-2": _named(
        "gpt-2 phi-2 jina-es jina-de gigachat jina-v2-es jina-v2-de"
        " a.x-4.0 mellum mpt olmo jais trillion granite-docling exaone4"
    ),
    "starcoder": _named("starcoder refact command-r smollm codeshell exaone minerva-7b mellum2"),
    "llama-bpe": _named("dbrx smaug-bpe glm4 chatglm-bpe"),
    "qwen2": _named("qwen2 deepseek-r1-qwen kormo f2llmv2 megrez stablelm2 hunyuan solar-open grok-2"),
    "bloom": _named("bloom poro-chat gpt3-finnish"),
    "deepseek-v3": _named("deepseek-v3 hunyuan-dense joyai-llm hy_v4"),
    "gpt-4o": _named("gpt-4o llama4 kanana2 talkie minimax-m2"),
    "tiny_aya": _named("tiny_aya cohere2moe"),
    "bailingmoe": _named("bailingmoe bailingmoe2 llada-moe"),
} | {
    name: (name,)
    for name in _named(
        "qwen35 ufakzeka jais-2 falcon viking deepseek-llm deepseek-coder seed-coder exaone-moe superbpe laguna"
        " afmoe kimi-k2"
    )
}

PRE_TOKENIZERS: dict[str, PreTokenizer] = (
    {name: PreTokenizer(name=name, rule=rule) for rule, names in _NAMES.items() for name in names}
    | {
        name: PreTokenizer(name=name, rule="llama-bpe", ignore_merges=True, add_bos=True)
        for name in _named("llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano")
    }
    | {
        "tekken": PreTokenizer(name="tekken", rule="tekken", ignore_merges=True, add_bos=True),
        "chameleon": PreTokenizer(name="chameleon", rule="chameleon", add_bos=True),
        "minicpm5": PreTokenizer(name="minicpm5", rule="minicpm5", ignore_merges=True),
        "youtu": PreTokenizer(name="youtu", rule="youtu", ignore_merges=True),
        "granite-embed-multi-97m": PreTokenizer(
            name="granite-embed-multi-97m", rule="granite-embed-multi-97m", ignore_merges=True
        ),
        "gemma4": PreTokenizer(name="gemma4", rule="lines", add_bos=True, raw=True),
        "sarvam-moe": PreTokenizer(name="sarvam-moe", rule="lines", raw=True),
    }
)
"""Every rule that this version follows, by the name in the file."""


def pre_tokenizer(name: str) -> PreTokenizer:
    """Rule of a name in `tokenizer.ggml.pre`.

    Raises
    ------
    UnsupportedError
        If the name is not known here; a rule is never guessed.
    """
    rule = PRE_TOKENIZERS.get(name)
    if rule is None:
        known = ", ".join(sorted(PRE_TOKENIZERS))
        raise UnsupportedError(
            f"tokenizer.ggml.pre must be one of {known}",
            repr(name[:80]),
            "Pass token_ids made with the model's own tokenizer.",
        )
    return rule


@cache
def _cutters(rule: str) -> tuple[Callable[[str], Iterator[str]], ...]:
    return tuple(_cutter(regex.compile(expression, regex.V1)) for expression in _RULES[rule])


def _cutter(expression: regex.Pattern[str]) -> Callable[[str], Iterator[str]]:
    def cut(text: str) -> Iterator[str]:
        at = 0
        for match in expression.finditer(text):
            start, stop = match.span()
            if start > at:
                yield text[at:start]
            if stop > start:
                yield text[start:stop]
            at = stop
        if at < len(text):
            yield text[at:]

    return cut
