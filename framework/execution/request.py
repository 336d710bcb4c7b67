"""A request, and the result that comes back for it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Required, TypedDict

import attrs
from attrs import validators as v

from framework.execution.sampling import Sampling


class Message(TypedDict):
    """One turn of a conversation, checked: `content` is a list of parts however it was written.

    A part has its kind as `type` (text, image, audio, video) and under that name the text or the path of a file.
    """

    role: Literal["system", "user", "assistant"]
    content: list[dict[str, Any]]


class Fields(TypedDict, total=False):
    """What a request may bring for `request:<field>` of a graph to read. One that was not given is absent.

    Media are absolute paths; `prompt_speaker_codes` are codec frames, each a list of codes.
    """

    messages: Required[list[Message]]
    audio: tuple[str, ...]
    image: tuple[str, ...]
    video: tuple[str, ...]
    voice: str
    language: str
    instruct: str
    ref_audio: str
    ref_text: str
    assistant_instruct: str
    system_instruct: str
    talker_language: str
    prompt_speaker_codes: list[list[int]]


def message_text(message: Mapping[str, Any], between: str = "") -> str:
    """The text parts of a message, joined by `between`; `content` may also be a plain text."""
    content = message.get("content") or ()
    if isinstance(content, str):
        return content
    return between.join(part["text"] for part in content if part.get("type") == "text")


@attrs.frozen(kw_only=True, eq=False)
class Request:
    """One request as the graph sees it.

    Attributes:
        index: position in the file; names its outputs (`audio_req<index>.wav`).
        fields: what `request:<field>` reads (`Fields`). Which of them are present decides the route.
        sampling: by role (`default`, `talker`, `code_predictor`) or stage id, only the settings that were given; a
            runner resolves them over its own defaults with `sampling_for`.
        kinds: payload kinds the caller wants (`text`, `audio`, `video` ...).
        terminals: outputs the caller wants, each `<stage>:<port>`, where kinds do not say it: also of ports that the
            graph does not return by itself, such as a transcript. Empty means the graph's terminals of `kinds`.
        given: by `<stage>:<port>`, the chunk that the request brings in place of that stage's work, such as the text
            that is spoken. A stage of which nothing else is needed does not run.
        options: switches that are no inputs (apply_chat_template, add_generation_prompt, enable_thinking, style).
        priority: with in-flight batching, those of a higher one start first; one that has started is never stopped.
        deadline_s: seconds from its submission after which it is given up, and fails with what it has; None for never.
    """

    index: int
    fields: Mapping[str, Any]
    sampling: Mapping[str, Mapping[str, Any]] = attrs.field(factory=dict)
    kinds: frozenset[str] = frozenset({"text"})
    terminals: tuple[str, ...] = ()
    given: Mapping[str, Any] = attrs.field(factory=dict)
    options: Mapping[str, Any] = attrs.field(factory=dict)
    priority: int = attrs.field(default=0, validator=v.instance_of(int))
    deadline_s: float | None = attrs.field(default=None, validator=v.optional(v.gt(0.0)))

    def sampling_for(self, role: str, defaults: Mapping[str, Any] | None = None, *, stage: str = "") -> Sampling:
        """Settings of one role: built-in values, overlaid by `defaults`, then by what was given for the role, then by
        what was given for the stage of this id.

        Settings without a role are the backbone's (`default`); of these only the seed is for every role: a speaking
        stage that became greedy with its text would never end.
        """
        given = self.sampling
        seed = {key: value for key, value in given.get("default", {}).items() if key == "seed"}
        return Sampling(**{**(defaults or {}), **seed, **given.get(role, {}), **given.get(stage, {})})


@attrs.frozen(kw_only=True)
class StageReport:
    """What one stage did for one request.

    Attributes:
        start_s, first_output_s, end_s: seconds since the request was started; it may have waited before.
        busy_s: time spent in `step` calls the request took part in.
        steps: number of those calls.
        details: what the runner reported (finish_reason, token counts ...).
    """

    start_s: float
    first_output_s: float | None
    end_s: float
    busy_s: float
    steps: int
    details: Mapping[str, Any]


@attrs.frozen(kw_only=True, eq=False)
class Result:
    """Outcome of one request.

    Attributes:
        outputs: chunks of each requested terminal by `<stage>:<port>`, in order; also what was made before a failure.
        error: None exactly when `ok`.
        cancelled: the caller gave it up; `ok` is False.
        stages: report of every stage that ran, in graph order.
        wall_s: seconds from its start to its end; it may have waited before.
    """

    request: Request
    ok: bool
    error: Exception | None
    cancelled: bool
    outputs: Mapping[str, tuple[Any, ...]]
    stages: Mapping[str, StageReport]
    wall_s: float
