"""From a body to requests of a graph."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from framework.errors import ConfigError, Problem
from framework.execution.payloads import TextChunk
from framework.execution.request import Request
from framework.io.requests import Rejected, read_request
from framework.serve import reading
from framework.serve.faults import Refused
from framework.serve.media import Media
from framework.serve.served import Served
from framework.serve.wire import MOST_LOGPROBS, REFUSED, ChatBody, CompletionBody, Message, Sampled, SpeechBody

KINDS = frozenset({"text", "audio", "video"})


def chat(body: ChatBody, served: Served, media: Media) -> list[Request]:
    """A request for each choice that a chat asks for. Raises ConfigError with everything that is wrong."""
    _check_refused(body)
    kinds = frozenset(body.modalities or _usual(served))
    reading.check_modalities(served.graph, kinds)
    raw: dict[str, Any] = {"messages": _messages(body.messages, media)}
    raw |= _speech(body.audio.voice if body.audio else None, body.language, body.instructions)
    raw |= {"style": body.style or None, "enable_thinking": body.enable_thinking}
    if body.top_logprobs and not body.logprobs:
        got = f"{body.top_logprobs} without logprobs"
        raise Refused(Problem(where="top_logprobs", got=got, expected='"logprobs": true with it'))
    return _choices(_request(raw, body, served, kinds, logprobs=bool(body.logprobs)), body)


def completion(body: CompletionBody, served: Served) -> list[list[Request]]:
    """For each prompt, a request for each choice. The prompt is read as it stands, without a chat template."""
    reading.check_modalities(served.graph, frozenset({"text"}))
    prompts = [body.prompt] if isinstance(body.prompt, str) else body.prompt
    if not prompts or not all(isinstance(prompt, str) for prompt in prompts):
        raise Refused(
            Problem(where="prompt", got="tokens" if prompts else "an empty list", expected="text, or a list of texts")
        )
    problems = []
    if body.suffix:
        problems.append(
            Problem(where="suffix", got=repr(body.suffix), expected="none: nothing here fills in the middle")
        )
    if (body.best_of or 1) > (body.n or 1):
        problems.append(Problem(where="best_of", got=str(body.best_of), expected="at most n: no choice is thrown away"))
    if problems:
        raise Refused(problems, code="unsupported")
    found = []
    for prompt in prompts:
        raw = {"prompt": prompt, "apply_chat_template": False}
        most = {"max_generate_length": 16} if body.max_tokens is None else {}  # OpenAI's own default
        request = _request({**raw, **most}, body, served, frozenset({"text"}), logprobs=body.logprobs is not None)
        found.append(_choices(request, body))
    return found


def speech(body: SpeechBody, served: Served) -> Request:
    """One request that says the input."""
    plan = reading.saying(served.graph)
    raw: dict[str, Any] = {"prompt": body.input, "seed": body.seed, "sampling": body.sampling}
    raw |= _speech(body.voice, body.language, body.instructions)
    style = dict(body.style or {})
    if body.speed is not None and body.speed != 1:
        style.setdefault("speed", body.speed)
    raw["style"] = style or None
    request = _read(raw, served, frozenset({"audio"}))
    given = {plan.brings: TextChunk(text=body.input)} if plan.brings else {}
    # The text goes in at one place: a message beside it would be written on by the stages in between.
    return attrs.evolve(_seeded(request), terminals=(plan.terminal,), given=given, **_due(body.deadline_s, served))


def transcription(path: Path, served: Served, *, language: str | None, temperature: float | None) -> Request:
    """One request that writes down what is said in a file."""
    terminal = reading.transcript(served.graph)
    if language is not None and not reading.reads(served.graph, "language"):
        stage = served.graph.stage(terminal.partition(":")[0])
        if stage is None or stage.config.get("language") != language:
            expected = "none: this deployment hears the language, or knows one alone"
            raise Refused(Problem(where="language", got=repr(language), expected=expected), code="unsupported")
    raw: dict[str, Any] = {"audio": str(path)}
    if temperature is not None:
        raw["sampling"] = {terminal.partition(":")[0]: {"temperature": temperature}}
    request = _read(raw, served, frozenset({"text"}))
    return attrs.evolve(_seeded(request), terminals=(terminal,), **_due(None, served))


def turn(
    messages: Sequence[Mapping[str, Any]],
    served: Served,
    *,
    kinds: frozenset[str],
    voice: str | None,
    speed: float | None,
    max_tokens: int | None,
    temperature: float | None,
) -> Request:
    """A reply to a conversation whose media are files of ours."""
    raw = {"messages": messages, "max_generate_length": max_tokens, "temperature": temperature}
    raw |= _speech(voice, None, None) | {"style": None if speed in (None, 1) else {"speed": speed}}
    return attrs.evolve(_seeded(_read(raw, served, kinds)), **_due(None, served))


def _usual(served: Served) -> Iterable[str]:
    """What a chat gives that asks for nothing: text where the graph writes any."""
    gives = reading.offered(served.graph)
    return ("text",) if "text" in gives else gives


def _request(
    raw: Mapping[str, Any], body: Sampled, served: Served, kinds: frozenset[str], *, logprobs: bool = False
) -> Request:
    most = getattr(body, "max_completion_tokens", None) or body.max_tokens
    stop = [body.stop] if isinstance(body.stop, str) else body.stop
    settings = {
        "temperature": body.temperature,
        "top_p": body.top_p,
        "top_k": body.top_k,
        "min_p": body.min_p,
        "repetition_penalty": body.repetition_penalty,
        "max_generate_length": most,
        "seed": body.seed,
        "stop": stop,
        "logit_bias": body.logit_bias,
        # However few are shown: a token that was drawn is found among them, and with it its own log-probability.
        "num_logprobs": MOST_LOGPROBS if logprobs else None,
    }
    given = {key: value for key, value in settings.items() if value is not None}
    request = _read({**raw, **given, "sampling": body.sampling}, served, kinds)
    return attrs.evolve(request, **_due(body.deadline_s, served))


def _due(seconds: float | None, served: Served) -> dict[str, Any]:
    most = served.limits.deadline_s
    return {"deadline_s": most if seconds is None else min(seconds, most)}


def _read(raw: Mapping[str, Any], served: Served, kinds: frozenset[str]) -> Request:
    own = served.deployment.defaults
    defaults = attrs.evolve(own, kinds=KINDS)
    written = {key: value for key, value in raw.items() if value is not None}
    entry = read_request(written, served.next_number(), defaults, Path(), "request")
    if isinstance(entry, Rejected):
        raise entry.error
    return attrs.evolve(entry, kinds=kinds)


def _choices(request: Request, body: Sampled) -> list[Request]:
    first = _seeded(request)
    seed = first.sampling["default"]["seed"]
    return [first] + [_with_seed(request, (seed + number) % 2**63) for number in range(1, body.n or 1)]


def _seeded(request: Request) -> Request:
    """A request without a seed gets one by chance: two of them are not the same reply."""
    if "seed" in request.sampling.get("default", {}):
        return request
    return _with_seed(request, secrets.randbits(31))


def _with_seed(request: Request, seed: int) -> Request:
    sampling = {**request.sampling, "default": {**request.sampling.get("default", {}), "seed": seed}}
    return attrs.evolve(request, sampling=sampling)


def _speech(voice: str | Mapping[str, str] | None, language: str | None, instructions: str | None) -> dict[str, Any]:
    """Fields of a speech stage. A voice that is called `default` is the deployment's own."""
    if isinstance(voice, Mapping):
        voice = voice.get("id")
    given = {"voice": None if voice == "default" else voice, "language": language, "instruct": instructions}
    return {key: value for key, value in given.items() if value is not None}


def _messages(messages: Sequence[Message], media: Media) -> list[dict[str, Any]]:
    read, problems = [], list[Problem]()
    for number, message in enumerate(messages):
        where = f"messages[{number}].content"
        role = "system" if message.role == "developer" else message.role
        content: Any = message.content
        if content is None and message.audio is not None and message.audio.transcript:
            content = message.audio.transcript
        if content is None:
            problems.append(Problem(where=where, got="nothing", expected="text, or a list of parts"))
        elif isinstance(content, list):
            parts = []
            for index, part in enumerate(content):
                try:
                    parts.append(media.part(part, f"{where}[{index}]"))
                except ConfigError as error:
                    problems += error.problems
            content = parts
        read.append({"role": role, "content": content})
    if problems:
        raise ConfigError(problems)
    return read


def _check_refused(body: ChatBody) -> None:
    problems = [
        Problem(where=name, got=_shown(value), expected="nothing: no model here does this")
        for name, none in REFUSED.items()
        if (value := getattr(body, name)) not in none
    ]
    form = (body.response_format or {"type": "text"}).get("type")
    if form != "text":
        expected = "text: no model here is held to a schema"
        problems.append(Problem(where="response_format.type", got=repr(form), expected=expected))
    if problems:
        raise Refused(problems, code="unsupported")


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
