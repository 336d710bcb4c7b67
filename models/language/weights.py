"""Names in the checkpoint. Parameters have the checkpoint's own names but for what stands here."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

# A mixture's experts are one stacked parameter [experts, out, in]; checkpoints have a matrix an expert.
EXPERT = "{prefix}.mlp.experts.{expert}.{projection}.weight"
STACKED = ("gate_proj", "up_proj", "down_proj")

# Buffers that old checkpoints saved, and the output layer beside a tied embedding.
IGNORED = ("*.rotary_emb.inv_freq",)
IGNORED_WHEN_TIED = ("lm_head.weight",)


def official_names(
    parameters: Mapping[str, Sequence[int]], checkpoint: Collection[str], prefix: str = ""
) -> dict[str, list[str] | str]:
    """Official names of parameters: behind `prefix`, and several behind each stacked parameter, unless the checkpoint
    stacks them itself (GGUF)."""
    names: dict[str, list[str] | str] = {}
    for parameter, shape in parameters.items():
        official = f"{prefix}{parameter}"
        layer, found, projection = official.partition(".mlp.experts.")
        if found and projection in STACKED and official not in checkpoint:
            names[parameter] = [
                EXPERT.format(prefix=layer, expert=expert, projection=projection) for expert in range(shape[0])
            ]
        elif prefix:
            names[parameter] = official
    return names
