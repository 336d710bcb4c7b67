"""Qwen3-TTS at 12.5 frames a second: talker with its code predictor, codec, and what clones a voice."""
