"""The commands; the only room that knows Hydra."""
