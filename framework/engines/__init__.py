"""Engines: compiled networks on a backend. `base` is the contract, `backend` opens and compiles, `folder` builds."""
