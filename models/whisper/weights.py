"""Names in the checkpoint: the parameters' own below `model.`, but for what stands here."""

from __future__ import annotations

from collections.abc import Iterable

# The cross-attention's keys and values are computed where the sound is encoded, feed-forward layers have no level
# of their own in the checkpoint, and the output layer is the embedding.
CROSS = ("cross.", "decoder.layers.", ".encoder_attn")
ENCODER_ONLY = ("model.encoder.*", "*.encoder_attn.k_proj.*", "*.encoder_attn.v_proj.*")
DECODER_ONLY = ("model.decoder.*",)  # what the encoder's check may leave over; a cross-attention's half is taken first
TIED = ("proj_out.weight",)


def official_names(parameters: Iterable[str]) -> dict[str, str]:
    """Official name of each parameter."""
    return {name: _official(name) for name in parameters}


def _official(name: str) -> str:
    ours, theirs, level = CROSS
    if name.startswith(ours):
        layer, _, rest = name.removeprefix(ours).partition(".")
        name = f"{theirs}{layer}{level}.{rest}"
    return f"model.{name.replace('.mlp.', '.')}"
