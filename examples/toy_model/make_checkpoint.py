"""Writes a checkpoint that has learnt the alphabet: python examples/toy_model/make_checkpoint.py FOLDER

The state is the letter that comes next: the update gate is shut, and the new state is the letter read, moved by one.
"""

import json
import sys
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

VOCAB = 256
SHUT, LOUD = -20.0, 20.0  # of a gate before the sigmoid, and of a state before the tanh


def weights() -> dict[str, np.ndarray]:
    one = np.eye(VOCAB, dtype=np.float32)
    none = np.zeros((VOCAB, VOCAB), np.float32)
    after = [ord("a") if byte == ord("z") else (byte + 1) % VOCAB for byte in range(VOCAB)]
    bias = np.zeros(3 * VOCAB, np.float32)
    bias[VOCAB : 2 * VOCAB] = SHUT
    return {
        "embed.weight": one[after],
        "input_gates.weight": np.concatenate([none, none, LOUD * one]),
        "input_gates.bias": bias,
        "state_gates.weight": np.zeros((3 * VOCAB, VOCAB), np.float32),
        "state_gates.bias": np.zeros(3 * VOCAB, np.float32),
        "head.weight": one,
    }


def save(folder: Path, tensors: dict[str, np.ndarray]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "model.safetensors")
    config = {"architectures": ["SpellForCausalLM"], "hidden": len(tensors["head.weight"][0])}
    (folder / "config.json").write_text(json.dumps(config))


if __name__ == "__main__":
    save(Path(sys.argv[1]), weights())
