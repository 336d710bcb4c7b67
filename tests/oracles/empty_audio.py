"""What qwen-tts imports for its 25 Hz tokenizer, sox and torchaudio, as empty modules: the 12 Hz one uses neither."""

from __future__ import annotations

import importlib.machinery
import sys
import types


def install() -> None:
    for name in ("sox", "torchaudio", "torchaudio.compliance", "torchaudio.compliance.kaldi"):
        sys.modules[name] = module = types.ModuleType(name)
        module.__spec__, module.__path__ = importlib.machinery.ModuleSpec(name, None), []
    sys.modules["torchaudio"].compliance = sys.modules["torchaudio.compliance"]  # type: ignore[attr-defined]
    sys.modules["torchaudio.compliance"].kaldi = sys.modules["torchaudio.compliance.kaldi"]  # type: ignore[attr-defined]
