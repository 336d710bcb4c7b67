"""Model families. Each folder has the same files:

config.py (typed, from config.json) · network.py · weights.py (names in the checkpoint, as data) ·
processing.py (tokens, mel, patches) · runners.py · topology.py (components and stages of a build)
"""
