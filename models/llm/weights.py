"""Names in the checkpoint. Parameters have the checkpoint's own names but for what stands here."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

# A mixture's experts are one stacked parameter [experts, out, in]; checkpoints have a matrix an expert.
EXPERT = "{prefix}.mlp.experts.{expert}.{projection}.weight"
STACKED = ("gate_proj", "up_proj", "down_proj")

# Buffers that old checkpoints saved, and the output layer beside a tied embedding.
IGNORED = ("*.rotary_emb.inv_freq",)
IGNORED_WHEN_TIED = ("lm_head.weight",)


def official_names(parameters: Mapping[str, Sequence[int]], checkpoint: Collection[str]) -> dict[str, list[str]]:
    """Official names behind each stacked parameter; a checkpoint that stacks them itself (GGUF) needs none."""
    names = {}
    for parameter, shape in parameters.items():
        prefix, found, projection = parameter.partition(".mlp.experts.")
        if found and projection in STACKED and parameter not in checkpoint:
            names[parameter] = [
                EXPERT.format(prefix=prefix, expert=expert, projection=projection) for expert in range(shape[0])
            ]
    return names
