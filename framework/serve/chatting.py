"""`POST /v1/chat/completions` and `POST /v1/completions`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from framework.errors import Problem
from framework.execution.payloads import TextChunk
from framework.serve import asking, replies
from framework.serve.faults import Refused
from framework.serve.flight import Flight
from framework.serve.media import Media
from framework.serve.served import House
from framework.serve.streaming import Stream, begun, until_gone
from framework.serve.wire import ChatBody, CompletionBody

EVENTS = "text/event-stream; charset=utf-8"
REPLY: dict[int | str, dict[str, Any]] = {200: {"content": {"application/json": {}, "text/event-stream": {}}}}
router = APIRouter()


@router.post("/v1/chat/completions", response_model=None, responses=REPLY)
async def chat(body: ChatBody, request: Request) -> Response:
    """A reply to a conversation, as text, as sound, or both."""
    served = house_of(request)[body.model]
    note(request, model=body.model, stream=bool(body.stream))
    sound = _sound_format(body)
    shown = (body.top_logprobs or 0) if body.logprobs else None
    with_usage = bool(body.stream_options and body.stream_options.include_usage)

    def choices(requests: Sequence[Any]) -> list[replies.Choice]:
        spoken = replies.has_sound(requests[0].kinds)
        return [replies.Choice(n, spoken=spoken, sound=sound, shown=shown) for n in range(len(requests))]

    async def whole() -> dict[str, Any]:
        with Media(served.limits) as media:
            requests = await asyncio.to_thread(asking.chat, body, served, media)
            made = choices(requests)
            flights = await served.submit(requests)
            async with together(flights):
                await asyncio.gather(*[_filled(flight, choice) for flight, choice in zip(flights, made, strict=True)])
        results = _results(flights)
        done(request, flights)
        extra = _extra(body.stages, results[0])
        listed = [choice.whole(result) for choice, result in zip(made, results, strict=True)]
        return {**_head("chat.completion", body.model), "choices": listed, "usage": replies.usage(results), **extra}

    async def pieces() -> AsyncIterator[bytes]:
        with Media(served.limits) as media:
            requests = await asyncio.to_thread(asking.chat, body, served, media)
            made = choices(requests)
            flights = await served.submit(requests)
            head = _head("chat.completion.chunk", body.model)
            empty = {"usage": None} if with_usage else {}

            def event(choice: Mapping[str, Any]) -> bytes:
                return replies.sse({**head, "choices": [choice], **empty})

            begun_choices: set[int] = set()
            async with together(flights):
                try:
                    async for number, chunk in merged(flights):
                        if number not in begun_choices:
                            begun_choices.add(number)
                            yield event(made[number].first())
                        if (delta := made[number].take(chunk)) is not None:
                            yield event(delta)
                    results = _results(flights)
                except Exception as error:
                    if not begun_choices:
                        raise  # nothing was sent: the status tells it
                    note(request, error=str(error))
                    yield replies.sse_error(error)
                    return
            for choice, result in zip(made, results, strict=True):
                for delta in choice.last(result):
                    yield event(delta)
            done(request, flights)
            if with_usage:
                yield replies.sse({**head, "choices": [], "usage": replies.usage(results)})
            if body.stages:
                yield replies.sse({**head, "choices": [], **_extra(True, results[0])})
            yield replies.sse("[DONE]")

    if body.stream:
        return Stream(await until_gone(request, begun(pieces())), media_type=EVENTS, send_s=served.limits.send_s)
    return JSONResponse(await until_gone(request, whole()))


@router.post("/v1/completions", response_model=None, responses=REPLY)
async def complete(body: CompletionBody, request: Request) -> Response:
    """Text that goes on from a prompt."""
    served = house_of(request)[body.model]
    note(request, model=body.model, stream=bool(body.stream))
    with_usage = bool(body.stream_options and body.stream_options.include_usage)
    head = _head("text_completion", body.model, "cmpl-")

    def prepared() -> tuple[list[Any], list[str]]:
        groups = asking.completion(body, served)
        prompts = [body.prompt] if isinstance(body.prompt, str) else list(body.prompt)
        echoed = [
            str(prompt) if body.echo else "" for prompt, group in zip(prompts, groups, strict=True) for _ in group
        ]
        return [one for group in groups for one in group], echoed

    def choice(number: int, text: str, chunks: Sequence[TextChunk], finish: str | None, offset: int) -> dict[str, Any]:
        known = None if body.logprobs is None else replies.legacy_logprobs(chunks, body.logprobs, offset)
        return {"index": number, "text": text, "logprobs": known, "finish_reason": finish}

    async def whole() -> dict[str, Any]:
        requests, echoed = prepared()
        flights = await served.submit(requests)
        texts: list[list[TextChunk]] = [[] for _ in flights]
        async with together(flights):
            async for number, chunk in merged(flights):
                texts[number].append(chunk)
        results = _results(flights)
        done(request, flights)
        listed = [
            choice(n, echoed[n] + "".join(c.text for c in texts[n]), texts[n], replies.finish_reason(r), len(echoed[n]))
            for n, r in enumerate(results)
        ]
        return {**head, "choices": listed, "usage": replies.usage(results), **_extra(body.stages, results[0])}

    async def pieces() -> AsyncIterator[bytes]:
        requests, echoed = prepared()
        flights = await served.submit(requests)
        written, sent = [len(text) for text in echoed], False
        empty = {"usage": None} if with_usage else {}
        async with together(flights):
            try:
                async for number, chunk in merged(flights):
                    if not sent:
                        sent = True
                        for other, text in enumerate(echoed):
                            if text:
                                yield replies.sse({**head, "choices": [choice(other, text, [], None, 0)], **empty})
                    if chunk.text or body.logprobs is not None:
                        part = choice(number, chunk.text, [chunk], None, written[number])
                        yield replies.sse({**head, "choices": [part], **empty})
                    written[number] += len(chunk.text)
                results = _results(flights)
            except Exception as error:
                if not sent:
                    raise
                note(request, error=str(error))
                yield replies.sse_error(error)
                return
        for number, result in enumerate(results):
            last = choice(number, "", [], replies.finish_reason(result), written[number])
            yield replies.sse({**head, "choices": [last], **empty})
        done(request, flights)
        if with_usage:
            yield replies.sse({**head, "choices": [], "usage": replies.usage(results)})
        yield replies.sse("[DONE]")

    if body.stream:
        return Stream(await until_gone(request, begun(pieces())), media_type=EVENTS, send_s=served.limits.send_s)
    return JSONResponse(await until_gone(request, whole()))


def _sound_format(body: ChatBody) -> str:
    given = body.audio.format if body.audio else None
    if not body.stream:
        return given or "wav"
    if given not in (None, "pcm16", "pcm"):
        problem = Problem(where="audio.format", got=repr(given), expected="pcm16 where the reply is streamed")
        raise Refused(problem)
    return "pcm16"


async def _filled(flight: Flight, choice: replies.Choice) -> None:
    async for chunk in flight.chunks():
        choice.keep(chunk)


def _results(flights: Sequence[Flight]) -> list[Any]:
    """Results of requests that have ended; raises the error of the first that failed."""
    results = [flight.result for flight in flights]
    for result in results:
        assert result is not None
        replies.raise_for(result)
    return results


def _head(kind: str, model: str, prefix: str = "chatcmpl-") -> dict[str, Any]:
    return {"id": replies.new_id(prefix), "object": kind, "created": int(time.time()), "model": model}


def _extra(wanted: bool | None, result: Any) -> dict[str, Any]:
    if not wanted:
        return {}
    heard = replies.transcripts(result)
    return {"stages": replies.stages(result), **({"transcripts": heard} if heard else {})}


class together:
    """Requests that end together: when one is left early, all that still run are cancelled."""

    def __init__(self, flights: Sequence[Flight]) -> None:
        self._flights = flights

    async def __aenter__(self) -> None: ...

    async def __aexit__(self, *_: object) -> None:
        for flight in self._flights:
            flight.cancel()


async def merged(flights: Sequence[Flight]) -> AsyncIterator[tuple[int, Any]]:
    """Chunks of all flights as they come, each with the number of its flight."""
    if len(flights) == 1:
        async for chunk in flights[0].chunks():
            yield 0, chunk
        return
    queue: asyncio.Queue[tuple[int, Any] | Exception | None] = asyncio.Queue(maxsize=64)

    async def forward(number: int, flight: Flight) -> None:
        try:
            async for chunk in flight.chunks():
                await queue.put((number, chunk))
            await queue.put(None)
        except Exception as error:
            await queue.put(error)

    tasks = [asyncio.create_task(forward(number, flight)) for number, flight in enumerate(flights)]
    try:
        left = len(tasks)
        while left:
            item = await queue.get()
            if item is None:
                left -= 1
            elif isinstance(item, Exception):
                raise item
            else:
                yield item
    finally:
        for task in tasks:
            task.cancel()


def house_of(request: Request) -> House:
    house: House = request.app.state.house
    return house


def note(request: Request, **notes: Any) -> None:
    """For the request's line in the log."""
    request.scope["state"]["notes"].update(notes)


def done(request: Request, flights: Sequence[Flight]) -> None:
    """Note what the flights were."""
    results = [flight.result for flight in flights if flight.result is not None]
    sums = replies.usage(results)
    first = min((min(flight.first.values()) for flight in flights if flight.first), default=None)
    note(
        request,
        prompt_tokens=sums["prompt_tokens"],
        completion_tokens=sums["completion_tokens"],
        **({} if first is None else {"first_s": round(first, 4)}),
    )
