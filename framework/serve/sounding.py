"""`/v1/audio`: speech, transcriptions and voices."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from typing import Annotated, Any, Literal

from fastapi import APIRouter, File, Form, Request, UploadFile
from starlette.responses import JSONResponse, PlainTextResponse, Response

from framework.errors import Problem
from framework.execution.payloads import AudioChunk, TextChunk
from framework.execution.request import Result
from framework.serve import asking, reading, replies
from framework.serve.chatting import EVENTS, done, house_of, note, together
from framework.serve.encoding import MEDIA_TYPES, encoder
from framework.serve.faults import Refused
from framework.serve.flight import Flight
from framework.serve.media import Media
from framework.serve.streaming import Stream, begun, until_gone
from framework.serve.wire import SpeechBody

_TYPES = sorted({*MEDIA_TYPES.values(), "text/event-stream"})
SOUND: dict[int | str, dict[str, Any]] = {200: {"content": {media_type: {} for media_type in _TYPES}}}
HEARD: dict[int | str, dict[str, Any]] = {
    200: {"content": {"application/json": {}, "text/plain": {}, "text/event-stream": {}}}
}
router = APIRouter()
TimedFormat = Literal["json", "text", "srt", "verbose_json", "vtt"]


@router.post("/v1/audio/speech", response_model=None, responses=SOUND)
async def speak(body: SpeechBody, request: Request) -> Response:
    """A text said, sent while it is made."""
    served = house_of(request)[body.model]
    note(request, model=body.model, stream=True)
    made = encoder(body.response_format)

    async def sounds() -> AsyncIterator[bytes]:
        asked = asking.speech(body, served)
        [flight] = await served.submit([asked])
        async with together([flight]):
            async for chunk in flight.chunks():
                if isinstance(chunk, AudioChunk) and (data := made.push(chunk)):
                    yield data
        result = _result(flight)
        done(request, [flight])
        if rest := made.close():
            yield rest
        if body.stream_format == "sse":
            tokens = replies.usage([result])
            said = {"input_tokens": tokens["prompt_tokens"], "output_tokens": tokens["completion_tokens"]}
            sums = {**said, "total_tokens": tokens["total_tokens"]}
            yield replies.sse({"type": "speech.audio.done", "usage": sums})

    async def events() -> AsyncIterator[bytes]:
        sent = False
        try:
            async for data in sounds():
                if data.startswith(b"data: "):
                    yield data
                else:
                    sent = True
                    yield replies.sse({"type": "speech.audio.delta", "audio": base64.b64encode(data).decode()})
        except Exception as error:
            if not sent:
                raise
            note(request, error=str(error))
            yield replies.sse_error(error)

    sse = body.stream_format == "sse"
    pieces = await until_gone(request, begun(events() if sse else sounds()))
    media_type = EVENTS if sse else MEDIA_TYPES[body.response_format]
    return Stream(pieces, media_type=media_type, send_s=served.limits.send_s)


@router.post("/v1/audio/transcriptions", response_model=None, responses=HEARD)
async def transcribe(
    request: Request,
    file: Annotated[UploadFile, File()],
    model: Annotated[str, Form()],
    language: Annotated[str | None, Form()] = None,
    prompt: Annotated[str | None, Form()] = None,
    response_format: Annotated[TimedFormat, Form()] = "json",
    temperature: Annotated[float | None, Form(ge=0, le=2)] = None,
    stream: Annotated[bool, Form()] = False,
) -> Response:
    """What is said in a recording."""
    served = house_of(request)[model]
    note(request, model=model, stream=stream)
    _check_form(await request.form(), prompt, response_format, stream)
    content = await file.read()
    suffix = (file.filename or "").rpartition(".")[2]

    async def flown() -> AsyncIterator[tuple[str, Result | None]]:
        """Text as it is heard; with the last, which is empty, the result."""
        with Media(served.limits) as media:
            path = await asyncio.to_thread(media.keep, "audio", content, "file", suffix)
            asked = asking.transcription(path, served, language=language, temperature=temperature)
            [flight] = await served.submit([asked])
            async with together([flight]):
                async for chunk in flight.chunks():
                    if isinstance(chunk, TextChunk) and chunk.text:
                        yield chunk.text, None
            result = _result(flight)
            done(request, [flight])
            yield "", result

    async def events() -> AsyncIterator[bytes]:
        said: list[str] = []
        try:
            async for text, result in flown():
                if result is None:
                    said.append(text)
                    yield replies.sse({"type": "transcript.text.delta", "delta": text})
                else:
                    whole = "".join(said)
                    yield replies.sse({"type": "transcript.text.done", "text": whole, "usage": _usage(result)})
                    yield replies.sse("[DONE]")
        except Exception as error:
            if not said:
                raise
            note(request, error=str(error))
            yield replies.sse_error(error)

    async def whole() -> tuple[str, Result]:
        said: list[str] = []
        async for text, result in flown():
            said.append(text)
            if result is not None:
                return "".join(said), result
        raise AssertionError("a result is the last")

    if stream:
        return Stream(await until_gone(request, begun(events())), media_type=EVENTS, send_s=served.limits.send_s)
    text, result = await until_gone(request, whole())
    if response_format == "text":
        return PlainTextResponse(text + "\n")
    return JSONResponse({"text": text, "usage": _usage(result)})


@router.post("/v1/audio/translations", response_model=None)
async def translate(request: Request) -> Response:
    """Not there: no stage translates what it hears."""
    problem = Problem(where="/v1/audio/translations", got="a translation", expected="/v1/audio/transcriptions")
    raise Refused(problem, code="unsupported")


@router.get("/v1/audio/voices")
async def voices(request: Request, model: str | None = None) -> dict[str, Any]:
    """Names that requests may give: voices and languages of one deployment, the first where none is named."""
    house = house_of(request)
    served = house.first if model is None else house[model]
    choices = await asyncio.to_thread(served.deployment.choices)
    own = ["default"] if reading.SOUND in reading.offered(served.graph) else []
    return {
        "object": "list",
        "model": served.name,
        "voices": [*own, *choices.get("voice", ())],
        "languages": list(choices.get("language", ())),
    }


_FORM = ("file", "model", "language", "prompt", "response_format", "temperature", "stream")
_UNUSED = ("chunking_strategy", "include", "include[]", "timestamp_granularities[]", "timestamp_granularities")


def _check_form(form: Any, prompt: str | None, response_format: str, stream: bool) -> None:
    from framework.errors import nearest

    problems = [
        Problem(where=key, got="an unknown field", expected="a known field", hint=nearest(key, _FORM))
        for key in form
        if key not in (*_FORM, *_UNUSED)
    ]
    problems += [
        Problem(where=key, got=repr(value), expected=expected)
        for key in _UNUSED
        if (value := form.get(key))
        for expected in [
            "nothing: the sound is cut where it is quiet" if key == _UNUSED[0] else "nothing: no stage tells it"
        ]
        if not (key == _UNUSED[0] and value == "auto")
    ]
    if prompt:
        problems.append(
            Problem(where="prompt", got=repr(prompt), expected="none: no stage reads words beside the sound")
        )
    if response_format not in ("json", "text"):
        expected = "json or text: no stage tells when words were said"
        problems.append(Problem(where="response_format", got=repr(response_format), expected=expected))
    if stream and response_format != "json":
        problems.append(Problem(where="response_format", got=repr(response_format), expected="json with stream"))
    if problems:
        raise Refused(problems, code="unsupported")


def _result(flight: Flight) -> Result:
    assert flight.result is not None
    replies.raise_for(flight.result)
    return flight.result


def _usage(result: Result) -> dict[str, Any]:
    """By the length of the sound, where its stage tells it."""
    heard = [r.details["audio_seconds"] for r in result.stages.values() if "audio_seconds" in r.details]
    return {"type": "duration", "seconds": round(sum(heard), 3)}
