"""Talkers with a code predictor, as Qwen3-TTS and Qwen3-Omni have them, and the runner that speaks with one."""
