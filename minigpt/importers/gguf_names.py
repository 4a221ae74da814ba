"""The names of GPT-2's tensors in GGUF files, for those who write them and those who read them.

Source: llama.cpp, src/llama-arch.cpp and src/models/gpt2.cpp.
"""

_MODULES = {
    "token_embedding": "token_embd",
    "position_embedding": "position_embd",
    "attention_norm": "attn_norm",
    "attention.qkv_proj": "attn_qkv",
    "attention.out_proj": "attn_output",
    "mlp_norm": "ffn_norm",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "final_norm": "output_norm",
}


def name_in_gguf(ours: str) -> str:
    """`blocks.0.mlp.up_proj.weight` is `blk.0.ffn_up.weight` there."""
    module, _, ending = ours.rpartition(".")
    if not module.startswith("blocks."):
        return f"{_MODULES[module]}.{ending}"
    _, block, module = module.split(".", 2)
    return f"blk.{block}.{_MODULES[module]}.{ending}"
