"""Qwen3-Omni: hears, sees, thinks and speaks."""
