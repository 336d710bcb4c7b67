"""The 12.5 Hz codec of Qwen3's talkers: codes to sound, sound to codes, and a voice to a vector."""
