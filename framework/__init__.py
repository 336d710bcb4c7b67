"""Running requests through several engines: graphs, runners, engines, networks and commands. Knows no model.

    from framework import Deployment

What is imported here is loaded when it is first asked for, so that a part of the framework may be had alone.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from framework.api import Asked as Asked
    from framework.api import Deployment as Deployment
    from framework.deployment.replies import Reply as Reply
    from framework.errors import ConfigError as ConfigError
    from framework.errors import GraphError as GraphError
    from framework.errors import MultistageError as MultistageError
    from framework.errors import StageError as StageError
    from framework.execution.payloads import AudioChunk as AudioChunk
    from framework.execution.payloads import TextChunk as TextChunk

_PUBLIC = {
    "Asked": "framework.api",
    "Deployment": "framework.api",
    "Reply": "framework.deployment.replies",
    "ConfigError": "framework.errors",
    "GraphError": "framework.errors",
    "MultistageError": "framework.errors",
    "StageError": "framework.errors",
    "AudioChunk": "framework.execution.payloads",
    "TextChunk": "framework.execution.payloads",
}
__all__ = [*_PUBLIC]

if not TYPE_CHECKING:  # which would take any name then

    def __getattr__(name: str) -> Any:
        if name not in _PUBLIC:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(_PUBLIC[name]), name)
