"""Whisper: speech to text (Radford et al., "Robust Speech Recognition via Large-Scale Weak Supervision", 2022)."""
