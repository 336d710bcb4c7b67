"""How a server behaves; `conf/serve.yaml` says what each setting is for."""

from __future__ import annotations

import hashlib
import hmac
import os
from collections.abc import Mapping
from pathlib import Path

import attrs
from attrs import validators as v

from framework.deployment.config import BuildConfig, InferenceConfig, Node, ReportOptions
from framework.errors import ConfigError, Problem

KEY_VARIABLE = "MULTISTAGE_API_KEY"


@attrs.frozen(kw_only=True)
class Limits:
    """What one request may ask for.

    Attributes:
        body_mb: megabytes (10^6 bytes) of a body, uploads included.
        sound_s: seconds of one recording, and of one video.
        pixels: of one picture, and of one frame of a video.
        queue: requests of one deployment that may wait for a place; more are told to come again.
        deadline_s: seconds from a request to the end of its reply; a request may ask for less.
        unread: chunks that a client may leave unread before its request is given up.
        send_s: seconds that a client may take to accept a chunk.
    """

    body_mb: float = attrs.field(default=64.0, validator=v.gt(0))
    sound_s: float = attrs.field(default=600.0, validator=v.gt(0))
    pixels: int = attrs.field(default=25_000_000, validator=v.ge(1))
    queue: int = attrs.field(default=64, validator=v.ge(0))
    deadline_s: float = attrs.field(default=600.0, validator=v.gt(0))
    unread: int = attrs.field(default=4096, validator=v.ge(1))
    send_s: float = attrs.field(default=30.0, validator=v.gt(0))


class Keys:
    """The API keys of a server; none lets everybody in."""

    def __init__(self, keys: tuple[str, ...]) -> None:
        self._digests = tuple(map(_digest, keys))

    def __bool__(self) -> bool:
        return bool(self._digests)

    def accept(self, key: str) -> bool:
        """Takes the same time for every key that is wrong."""
        given = _digest(key)
        # All are compared, so that the time does not tell which of them it resembles.
        return any([hmac.compare_digest(given, known) for known in self._digests])


def read_keys(path: Path | None, environment: Mapping[str, str] = os.environ) -> Keys:
    """Keys of a file, one a line, or of the environment variable MULTISTAGE_API_KEY.

    Raises ConfigError for a file that cannot be read or has no key in it: it was meant to close the server.
    """
    if path is None:
        return Keys(tuple(filter(None, [environment.get(KEY_VARIABLE, "").strip()])))
    try:
        lines = path.expanduser().read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        problem = Problem(where="api_key_file", got=f"'{path}': {error}", expected="a file of keys, one a line")
        raise ConfigError(problem) from error
    keys = tuple(key for line in lines if (key := line.strip()) and not key.startswith("#"))
    if not keys:
        raise ConfigError(Problem(where="api_key_file", got=f"'{path}' without a key", expected="a key a line"))
    return Keys(keys)


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


@attrs.frozen(kw_only=True)
class ServeConfig(BuildConfig):
    """See `conf/serve.yaml`, whose comments say what each is."""

    sampling: Node
    style: Node
    batching: Node
    stages: Node = attrs.field(factory=dict)
    build_if_missing: bool = False
    whole_utterance: bool | None = None
    enable_thinking: bool = False
    stream_capacity: int = attrs.field(default=64, validator=v.ge(1))

    name: str | None = None
    host: str = "127.0.0.1"
    port: int = attrs.field(default=8000, validator=[v.ge(0), v.le(65535)])
    api_key_file: Path | None = None
    grace_s: float = attrs.field(default=30.0, validator=v.ge(0))
    log_requests: bool = True
    limits: Limits = attrs.field(factory=Limits)

    @property
    def run(self) -> InferenceConfig:
        """The settings of the deployment, as a run from the command line has them."""
        own = {field.name for field in attrs.fields(ServeConfig)} & {
            field.name for field in attrs.fields(InferenceConfig)
        }
        return InferenceConfig(**{name: getattr(self, name) for name in own}, report=ReportOptions())
