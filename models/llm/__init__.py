"""Decoder-only language models: Llama (SmolLM2), Qwen3 and Qwen3-MoE."""
