"""Records what transformers' Qwen2VLVideoProcessor makes of videos in tests/models/qwen3_omni/video.{json,npz}.

    python tests/oracles/record_qwen3_omni_video.py

It needs torchvision, which the tests do not: of the release that belongs to the installed torch. Its compiled operators
are not used here, and are left out where they do not load.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))
FOLDER = ROOT / "tests" / "models" / "qwen3_omni"

from tests.io.videos import moving  # noqa: E402
from tests.models.qwen3_omni import tiny  # noqa: E402

# frames of the video, frames a second that it has, frames a second asked for
SAMPLED = [
    *[(total, 30.0, 2.0) for total in (2, 3, 4, 5, 29, 30, 31, 59, 60, 75, 300, 1801)],
    *[(total, 24000 / 1001, 2.0) for total in (24, 100, 2877)],
    *[(total, 25.0, fps) for total in (51, 250) for fps in (0.5, 1.0, 3.7, 25.0, 60.0)],
    (40_000, 30.0, 2.0),
    (12, 1.0, 2.0),
]
# frames, height, width; every so many patches are kept
SIZES = {"small": (2, 40, 56, 31), "odd": (3, 90, 64, 37), "wide": (2, 100, 700, 61), "large": (2, 700, 1300, 173)}


def main() -> None:
    registered = torch.library.register_fake

    def register_fake(name: Any, *args: Any, **kwargs: Any) -> Any:
        return (lambda f: f) if str(name).startswith("torchvision::") else registered(name, *args, **kwargs)

    torch.library.register_fake = register_fake  # type: ignore[assignment]
    from transformers.models.qwen2_vl.video_processing_qwen2_vl import Qwen2VLVideoProcessor
    from transformers.models.qwen3_omni_moe.processing_qwen3_omni_moe import Qwen3OmniMoeProcessor
    from transformers.video_utils import VideoMetadata

    keys = ("image_mean", "image_std", "patch_size", "temporal_patch_size", "merge_size")
    processor = Qwen2VLVideoProcessor(
        **{key: tiny.PREPROCESSOR[key] for key in keys}, size=Qwen3OmniMoeProcessor.videos_kwargs["size"]
    )
    sampled = []
    for total, rate, fps in SAMPLED:
        metadata = VideoMetadata(total_num_frames=total, fps=rate, duration=total / rate)
        indices = processor.sample_frames(metadata, fps=fps).tolist()
        sampled.append({"total": total, "rate": rate, "fps": fps, "indices": indices})
    arrays = {}
    for name, (count, height, width, step) in SIZES.items():
        frames = torch.from_numpy(moving(count, height, width)).permute(0, 3, 1, 2)
        found = processor(frames, return_tensors="np", do_sample_frames=False)
        arrays[f"{name}.grid"] = found["video_grid_thw"][0]
        arrays[f"{name}.patches"] = found["pixel_values_videos"][::step]
    sizes = {name: list(size) for name, size in SIZES.items()}
    (FOLDER / "video.json").write_text(json.dumps({"sampled": sampled, "sizes": sizes}) + "\n", encoding="utf-8")
    np.savez_compressed(FOLDER / "video.npz", **arrays)


if __name__ == "__main__":
    main()
