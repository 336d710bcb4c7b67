"""Decoder-only language models, alone or with encoders in front, and the runner that writes with one."""
