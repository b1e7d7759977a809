"""Small source trees with the structure of TensorRT-LLM's decoder definition, in words of our own."""

from __future__ import annotations

from pathlib import Path

MODELING = Path("tensorrt_llm/models/modeling_utils.py")

SOURCE = """\
from .pieces import gather_last_token_logits, net


class Other:

    def forward(self, hidden_states):
        return gather_last_token_logits(hidden_states, None, True)


class DecoderModelForCausalLM:
    \"\"\"Decoder with a head.\"\"\"

    def __init__(self, config, transformer, lm_head):
        self.config = config
        self.transformer, self.lm_head = transformer, lm_head

    def forward(self, use_cache=False, last_token_ids=None, **kwargs):
        hidden_states = self.transformer.forward(**kwargs)

        if use_cache:
            hidden_states, presents = hidden_states

        if self.config.mapping.cp_size > 1:
            hidden_states = net(hidden_states)

        if self.config.mapping.is_last_pp_rank():
{alias}            hidden_states = gather_last_token_logits(
                hidden_states, last_token_ids,
                net().remove_input_padding)
            lm_logits = self.lm_head(hidden_states)
            lm_logits.mark_output('logits', self.config.logits_dtype)
        else:
            hidden_states.mark_output('hidden_states_output', self.config.dtype)

        if self.config.mapping.is_last_pp_rank():
            return lm_logits
        return hidden_states
"""
ALIAS = "            all_hidden_states = hidden_states\n"


def source(*, alias: bool = False) -> str:
    """One version of the file; the newer ones keep an alias of the states before the gather."""
    return SOURCE.format(alias=ALIAS if alias else "")


def write_tree(folder: Path, text: str | None = None) -> Path:
    """Write a tree and return its `modeling_utils.py`."""
    file = folder / MODELING
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes((source() if text is None else text).encode())
    return file
