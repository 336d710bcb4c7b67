"""Rewrites of a network that backends share: model in, the same model changed. Networks never know of them.

Each pass looks for one structure that `framework.nn` writes and leaves everything else alone. A backend lists those it
runs (`Backend.passes`). The precision a build asked for stands in the model's metadata (`precision`, `block_size`), put
there by the builder.
"""
