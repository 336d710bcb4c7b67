"""The runner that graph files call `llm.backbone`."""

from models.language.runners import Backbone

__all__ = ["Backbone"]
