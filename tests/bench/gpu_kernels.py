"""Times of the decoder kernel at the sizes of Qwen3-TTS 0.6B: `python -m tests.bench.gpu_kernels`.

Random weights; a frame is one step of the talker and 15 steps of its code predictor, captured in one graph. Prints the
time of each, the bytes of weights it must read, and what a copy on the same device in the same run would take for them.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

import numpy as np

from framework.engines.cuda.kernels.shape import DecoderShape
from tests.bench.gpu_probe import copy_bandwidth, timed
from tests.engines.cuda.on_gpu import Run
from tests.engines.cuda.reference import Reference, random_cache, random_inputs, random_weights

_LAYER = {"width": 1024, "heads": 16, "kv_heads": 8, "head_dim": 128, "mlp": 3072}
PREDICTOR = DecoderShape(layers=5, vocab=2048, prompt=2, steps=15, capacity=17, **_LAYER)
TALKER = DecoderShape(layers=28, vocab=3072, capacity=2048, shaped=True, **_LAYER)
REPEATS = 50


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--check", action="store_true", help="compare with numpy too, which takes a minute")
    parser.add_argument("--past", type=int, default=200, help="cache entries of the talker before the frame")
    options = parser.parse_args()
    result: dict[str, Any] = {}
    runs = {}
    for name, shape in (("predictor", PREDICTOR), ("talker", TALKER)):
        weights = random_weights(shape, 7)
        run = runs[name] = Run(shape, weights)
        if name == "predictor":
            bandwidth = copy_bandwidth(run.memory)
            result["copy_tb_s"] = bandwidth / 1e12
        past = options.past if name == "talker" else 0
        for rows in (1, 2, 4):
            given = random_inputs(shape, rows, past, rows)
            keys, values = random_cache(shape, rows, 2), random_cache(shape, rows, 3)
            if options.check and rows != 2:
                got = run(given, keys, values)
                codes, hidden, _ = Reference(shape, weights)(given, keys, values)
                result[f"{name}_rows_{rows}_equal_codes"] = f"{(got.codes == codes).sum()} of {codes.size}"
                result[f"{name}_rows_{rows}_hidden_error"] = float(np.abs(got.hidden - hidden).max())
            _, launch = run.bound(given, keys, values)
            launch()
            medians = [timed(run.memory, run.memory.record(launch), REPEATS) for _ in range(3)]
            result[f"{name}_rows_{rows}_ms"] = [round(seconds * 1e3, 4) for seconds in medians]
        result[f"{name}_limit_ms"] = round(shape.weight_bytes / bandwidth * 1e3, 4)
    talker, predictor = runs["talker"], runs["predictor"]
    for rows in (1, 4):
        parts = []
        for name, run in runs.items():
            past = options.past if name == "talker" else 0
            given = random_inputs(run.shape, rows, past, rows)
            keys, values = random_cache(run.shape, rows, 2), random_cache(run.shape, rows, 3)
            buffers, _ = run.bound(given, keys, values)
            parts.append(buffers)
        # The predictor reads what the talker says: its hidden state, then the code it chose.
        first, second = parts[list(runs).index("talker")], parts[list(runs).index("predictor")]
        first |= predictor.decoder.reads_after(second["input"])
        calls = [talker.decoder.bind(first), predictor.decoder.bind(second)]
        predictor.decoder.memory.wait_for(talker.memory.stream)
        frame = talker.memory.record(lambda calls=calls: [one() for one in calls])
        medians = [timed(talker.memory, frame, REPEATS) for _ in range(3)]
        result[f"frame_rows_{rows}_ms"] = [round(seconds * 1e3, 4) for seconds in medians]
    result["frame_limit_ms"] = round((TALKER.weight_bytes + PREDICTOR.weight_bytes) / bandwidth * 1e3, 4)
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
