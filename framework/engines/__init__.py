"""Compiled networks: `base` is the contract, `backend` compiles and opens, and each backend has a folder."""
