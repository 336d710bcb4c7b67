"""Qwen3-TTS at 12.5 frames a second: a talker that says a text, its codec, and what clones a voice."""
