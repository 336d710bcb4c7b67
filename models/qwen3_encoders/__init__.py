"""Encoders of sound, pictures and video, and where what they find stands in a prompt."""
