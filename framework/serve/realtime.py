"""`WS /v1/realtime`: a spoken conversation. Sound comes while it is spoken, and so does the reply's.

The client sends events of OpenAI's realtime API and gets its events. Where the server listens for turns itself, speech
that begins cancels the reply that sounds (barge-in), and the conversation keeps of it what can have been heard.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import suppress
from typing import Any, Literal

import attrs
import numpy as np
from fastapi import APIRouter, WebSocket
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.websockets import WebSocketDisconnect

from framework.errors import MultistageError, Problem, nearest
from framework.execution.payloads import AudioChunk, TextChunk
from framework.serve import asking, reading, replies
from framework.serve.activity import Activity
from framework.serve.encoding import PCM_RATE, Pcm, wav_header
from framework.serve.faults import Refused, body, from_validation, refused
from framework.serve.flight import Flight
from framework.serve.media import Media
from framework.serve.served import Served, stopping
from framework.serve.wire import Wire

router = APIRouter()
GOING_AWAY, TOO_SLOW = 1001, 1008  # close codes
BYTES_PER_MS = 2 * PCM_RATE // 1000


# --- what a client sends -------------------------------------------------------------------------------------------


class Loose(BaseModel):
    """Fields that change nothing here are let be."""

    model_config = ConfigDict(extra="ignore", strict=True, allow_inf_nan=False)


class Format(Loose):
    type: Literal["audio/pcm"] = "audio/pcm"
    rate: Literal[24000] = 24000


class Detection(Loose):
    type: Literal["server_vad"] = "server_vad"
    threshold: float = Field(default=0.5, ge=0, le=1)
    prefix_padding_ms: int = Field(default=300, ge=0, le=5000)
    silence_duration_ms: int = Field(default=500, ge=100, le=10_000)
    create_response: bool = True
    interrupt_response: bool = True


class Heard(Loose):
    format: Format = Format()
    turn_detection: Detection | None = Detection()


class Spoken(Loose):
    format: Format = Format()
    voice: str | None = None
    speed: float | None = Field(default=None, ge=0.25, le=4)


class Audio(Loose):
    input: Heard = Heard()
    output: Spoken = Spoken()


class Session(Loose):
    """What holds for the whole conversation."""

    type: Literal["realtime"] = "realtime"
    instructions: str | None = None
    output_modalities: list[Literal["text", "audio"]] | None = Field(default=None, min_length=1)
    audio: Audio = Audio()
    max_output_tokens: int | Literal["inf"] = "inf"
    temperature: float | None = Field(default=None, ge=0, le=2)


class Part(Loose):
    type: Literal["input_text", "input_audio", "output_text"]
    text: str | None = None
    audio: str | None = None


class NewItem(Loose):
    type: Literal["message"]
    role: Literal["user", "assistant", "system"]
    content: list[Part] = Field(min_length=1)


class Event(Wire):
    event_id: str | None = None


class SessionUpdate(Event):
    type: Literal["session.update"]
    session: dict[str, Any]


class Append(Event):
    type: Literal["input_audio_buffer.append"]
    audio: str


class Commit(Event):
    type: Literal["input_audio_buffer.commit"]


class Clear(Event):
    type: Literal["input_audio_buffer.clear"]


class ItemCreate(Event):
    type: Literal["conversation.item.create"]
    item: NewItem
    previous_item_id: str | None = None


class ItemTruncate(Event):
    type: Literal["conversation.item.truncate"]
    item_id: str
    content_index: int = 0
    audio_end_ms: int = Field(ge=0)


class ItemDelete(Event):
    type: Literal["conversation.item.delete"]
    item_id: str


class ResponseCreate(Event):
    type: Literal["response.create"]
    response: dict[str, Any] | None = None


class ResponseCancel(Event):
    type: Literal["response.cancel"]
    response_id: str | None = None


EVENTS: dict[str, type[Event]] = {
    cls.model_fields["type"].annotation.__args__[0]: cls  # type: ignore[union-attr]
    for cls in (
        *(SessionUpdate, Append, Commit, Clear, ItemCreate, ItemTruncate, ItemDelete),
        *(ResponseCreate, ResponseCancel),
    )
}


def read_event(text: str) -> Event:
    """Raises Refused for what is no event of a client's."""
    try:
        raw = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Refused(Problem(where="event", got=f"no JSON: {error}", expected="an event, a JSON object")) from error
    kind = raw.get("type") if isinstance(raw, dict) else None
    if not isinstance(kind, str) or kind not in EVENTS:
        hint = nearest(kind, EVENTS) if isinstance(kind, str) else ""
        raise Refused(Problem(where="type", got=repr(kind)[:80], expected="an event of a client's", hint=hint))
    return _validated(EVENTS[kind], raw)


def _validated(cls: type[Any], raw: Any) -> Any:
    try:
        return cls.model_validate(raw)
    except ValidationError as error:
        raise from_validation([dict(one) for one in error.errors()], cls) from error


# --- a conversation ------------------------------------------------------------------------------------------------


@attrs.define(eq=False)
class Item:
    """One message. Of a spoken one `sound_ms` is how long it is, and `text` what is said in it, once that is known."""

    id: str
    role: str
    parts: list[dict[str, Any]]
    text: str = ""
    sound_ms: int = 0

    def shown(self, status: str = "completed") -> dict[str, Any]:
        own = "output" if self.role == "assistant" else "input"
        if self.sound_ms:
            content: list[dict[str, Any]] = [{"type": f"{own}_audio", "transcript": self.text}]
        else:
            texts = [part["text"] for part in self.parts if part["type"] == "text"] or [self.text]
            content = [{"type": f"{own}_text", "text": text} for text in texts]
        held = {"id": self.id, "object": "realtime.item", "type": "message"}
        return {**held, "status": status, "role": self.role, "content": content}

    def cut(self, at_ms: int) -> None:
        """Keep of its words those that are said by then: in proportion, no word in parts."""
        share = min(1.0, at_ms / self.sound_ms) if self.sound_ms else 1.0
        if share < 1.0:
            self.text = self.text[: round(share * len(self.text))].rpartition(" ")[0]
            self.sound_ms = at_ms
        self.parts = [{"type": "text", "text": self.text}]


class Response:
    """A reply under way."""

    def __init__(self, item: Item, spoken: bool) -> None:
        self.id = replies.new_id("resp_")
        self.item = item
        self.spoken = spoken
        self.flight: Flight | None = None
        self.cancelled = ""  # why
        self.sent_ms = 0
        self.first_at: float | None = None

    def cancel(self, why: str) -> None:
        self.cancelled = self.cancelled or why
        if self.flight is not None:
            self.flight.cancel()

    @property
    def heard_ms(self) -> int:
        """The most that a client can have played by now."""
        if self.first_at is None:
            return 0
        return min(self.sent_ms, round(1000 * (time.perf_counter() - self.first_at)))


class Conversation:
    """The state of one websocket.

    Args:
        send: an event to the client.
        close: the connection, with a code.
    """

    def __init__(
        self,
        served: Served,
        media: Media,
        send: Callable[[dict[str, Any]], Awaitable[None]],
        close: Callable[[int], Coroutine[Any, Any, None]],
    ) -> None:
        self.served = served
        self.session = Session()
        self.response: Response | None = None
        self.draining = False
        self._media = media
        self._send = send
        self._close = close
        self._items: dict[str, Item] = {}
        self._task: asyncio.Task[None] | None = None
        self._buffer = bytearray()
        self._dropped = 0  # bytes that came before those in the buffer
        self._listening: Activity | None = None
        self._speech_id = ""  # of the item that the speech under way will be
        self._speech_ms = 0  # where it began
        self._spoken = reading.SOUND in reading.offered(served.graph)
        self._listen()

    def drain(self) -> None:
        """The server stops: the reply under way is the last."""
        self.draining = True
        if self.response is None:
            self._task = asyncio.create_task(self._close(GOING_AWAY))

    async def begin(self) -> None:
        await self.tell("session.created", session=self._shown())

    async def end(self) -> None:
        """The client has gone."""
        if self.response is not None:
            self.response.cancel("client_gone")
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await self._task

    async def tell(self, kind: str, **fields: Any) -> None:
        await self._send({"type": kind, "event_id": replies.new_id("event_"), **fields})

    async def tell_fault(self, error: Exception, event_id: str | None = None) -> None:
        told = body(refused(error))["error"]
        await self.tell("error", error={**told, "event_id": event_id})

    async def take(self, event: Event) -> None:
        """One event of the client. Raises what is wrong with it; the conversation goes on."""
        match event:
            case SessionUpdate():
                await self._update(event.session)
            case Append():
                await self._append(event.audio)
            case Commit():
                await self._commit(bytes(self._buffer), replies.new_id("item_"))
                self._forget(len(self._buffer))
            case Clear():
                self._forget(len(self._buffer))
                await self.tell("input_audio_buffer.cleared")
            case ItemCreate():
                await self._create_item(event.item)
            case ItemTruncate():
                item = self._item(event.item_id)
                if item.role != "assistant" or not item.sound_ms:
                    problem = Problem(where="item_id", got=item.id, expected="a spoken reply")
                    raise Refused(problem)
                item.cut(event.audio_end_ms)
                await self._truncated(item, event.audio_end_ms)
            case ItemDelete():
                del self._items[self._item(event.item_id).id]
                await self.tell("conversation.item.deleted", item_id=event.item_id)
            case ResponseCreate():
                await self.respond(event.response or {})
            case ResponseCancel():
                if self.response is None:
                    raise Refused(Problem(where="response.cancel", got="no reply under way", expected="one"))
                self.response.cancel("client_cancelled")

    # The session

    async def _update(self, given: Mapping[str, Any]) -> None:
        merged = _over(self.session.model_dump(), given)
        session: Session = _validated(Session, merged)
        if session.output_modalities:
            reading.check_modalities(self.served.graph, frozenset(session.output_modalities))
        self.session = session
        self._listen()
        await self.tell("session.updated", session=self._shown())

    def _shown(self) -> dict[str, Any]:
        kinds = self.session.output_modalities or self._kinds
        return {**self.session.model_dump(), "model": self.served.name, "output_modalities": kinds}

    @property
    def _kinds(self) -> list[str]:
        return ["audio"] if self._spoken else ["text"]

    def _listen(self) -> None:
        detection = self.session.audio.input.turn_detection
        self._speech_id = ""
        self._forget(len(self._buffer))
        self._dropped = 0
        self._listening = None
        if detection is not None:
            self._listening = Activity(
                PCM_RATE, threshold=detection.threshold, silence_ms=detection.silence_duration_ms
            )

    # Sound that comes

    async def _append(self, text: str) -> None:
        try:
            data = base64.b64decode(text, validate=True)
        except (binascii.Error, ValueError) as error:
            raise Refused(Problem(where="audio", got=f"no base64: {error}", expected="16-bit samples")) from error
        if len(data) % 2:
            raise Refused(Problem(where="audio", got=f"{len(data)} bytes", expected="16-bit samples: an even number"))
        most = int(self.served.limits.sound_s * 1000) * BYTES_PER_MS
        if len(self._buffer) + len(data) > most:
            expected = f"at most {self.served.limits.sound_s:g} s before a commit"
            raise Refused(Problem(where="audio", got="more sound", expected=expected))
        self._buffer += data
        detection = self.session.audio.input.turn_detection
        if self._listening is None or detection is None:
            return
        for turn in self._listening.push(np.frombuffer(data, "<i2")):
            if turn.kind == "start":
                self._speech_id, self._speech_ms = replies.new_id("item_"), turn.at_ms
                await self.tell("input_audio_buffer.speech_started", item_id=self._speech_id, audio_start_ms=turn.at_ms)
                if detection.interrupt_response and self.response is not None:
                    self.response.cancel("turn_detected")
            elif self._speech_id:
                item_id, self._speech_id = self._speech_id, ""
                await self.tell("input_audio_buffer.speech_stopped", item_id=item_id, audio_end_ms=turn.at_ms)
                begin = self._place(self._speech_ms - detection.prefix_padding_ms)
                end = self._place(turn.at_ms + detection.prefix_padding_ms)
                await self._commit(bytes(self._buffer[begin:end]), item_id)
                self._forget(end)
                if detection.create_response:
                    await self.respond({}, wait=True)
        if not self._listening.speaking:  # silence is kept for as long as it may stand before speech
            self._forget(len(self._buffer) - (detection.prefix_padding_ms + 500) * BYTES_PER_MS)

    def _place(self, at_ms: int) -> int:
        """Where in the buffer a moment of the sound is."""
        return min(max(0, at_ms * BYTES_PER_MS - self._dropped), len(self._buffer))

    def _forget(self, count: int) -> None:
        if count > 0:
            del self._buffer[:count]
            self._dropped += count

    async def _commit(self, data: bytes, item_id: str) -> None:
        if len(data) < 100 * BYTES_PER_MS:
            problem = Problem(where="buffer", got=f"{len(data) // BYTES_PER_MS} ms of sound", expected="100 or more")
            raise Refused(problem, code="input_audio_buffer_commit_empty")
        if not reading.reads(self.served.graph, reading.SOUND):
            problem = Problem(where="input_audio_buffer", got="sound", expected="text: no stage reads sound")
            raise Refused(problem, code="unsupported")
        content = wav_header(PCM_RATE, 1, len(data)) + data
        path = await asyncio.to_thread(self._media.keep, "audio", content, "input_audio_buffer", "wav")
        previous = next(reversed(self._items), None)
        parts = [{"type": "audio", "audio": str(path)}]
        item = Item(item_id, "user", parts, sound_ms=len(data) // BYTES_PER_MS)
        await self.tell("input_audio_buffer.committed", item_id=item_id, previous_item_id=previous)
        await self._add(item)

    # Items

    async def _create_item(self, given: NewItem) -> None:
        parts: list[dict[str, Any]] = []
        sound_ms = 0
        for number, part in enumerate(given.content):
            where = f"item.content[{number}]"
            if part.type == "input_audio":
                data = base64.b64decode(part.audio or "")
                content = wav_header(PCM_RATE, 1, len(data)) + data
                path = await asyncio.to_thread(self._media.keep, "audio", content, f"{where}.audio", "wav")
                parts.append({"type": "audio", "audio": str(path)})
                sound_ms += len(data) // BYTES_PER_MS
            elif part.text is None:
                raise Refused(Problem(where=f"{where}.text", got="nothing", expected="text"))
            else:
                parts.append({"type": "text", "text": part.text})
        await self._add(Item(replies.new_id("item_"), given.role, parts, sound_ms=sound_ms))

    async def _add(self, item: Item) -> None:
        previous = next(reversed(self._items), None)
        self._items[item.id] = item
        for kind in ("conversation.item.added", "conversation.item.done"):
            await self.tell(kind, previous_item_id=previous, item=item.shown())

    def _item(self, item_id: str) -> Item:
        if item_id not in self._items:
            raise Refused(Problem(where="item_id", got=repr(item_id), expected="an item of this conversation"))
        return self._items[item_id]

    async def _truncated(self, item: Item, at_ms: int) -> None:
        await self.tell("conversation.item.truncated", item_id=item.id, content_index=0, audio_end_ms=at_ms)

    # Replies

    async def respond(self, given: Mapping[str, Any], *, wait: bool = False) -> None:
        """Begin a reply to the conversation as it stands.

        Args:
            given: settings of the session that this reply has otherwise.
            wait: for the end of one that is being cancelled.
        """
        if self.draining:
            raise stopping()
        if self.response is not None and wait and self._task is not None:
            self.response.cancel("turn_detected")
            with suppress(Exception):
                await asyncio.shield(self._task)
        if self.response is not None:
            problem = Problem(where="response.create", got="another reply under way", expected="none")
            raise Refused(problem, code="conversation_already_has_active_response")
        known = {key: given[key] for key in Session.model_fields if key in given}
        session: Session = _validated(Session, _over(self.session.model_dump(), known))
        kinds = frozenset(session.output_modalities or self._kinds)
        reading.check_modalities(self.served.graph, kinds)
        spoken = reading.SOUND in kinds
        writes = "text" in reading.offered(self.served.graph)
        request = asking.turn(
            self._messages(session),
            self.served,
            kinds=kinds | ({"text"} if writes else set()),
            voice=session.audio.output.voice,
            speed=session.audio.output.speed if spoken else None,
            max_tokens=None if session.max_output_tokens == "inf" else session.max_output_tokens,
            temperature=session.temperature,
        )
        response = self.response = Response(Item(replies.new_id("item_"), "assistant", []), spoken)
        try:
            [response.flight] = await self.served.submit([request])
        except BaseException:
            self.response = None
            raise
        self._task = asyncio.create_task(self._reply(response, response.flight))

    def _messages(self, session: Session) -> list[dict[str, Any]]:
        messages = [{"role": item.role, "content": item.parts} for item in self._items.values() if item.parts]
        if session.instructions:
            messages.insert(0, {"role": "system", "content": [{"type": "text", "text": session.instructions}]})
        return messages

    async def _reply(self, response: Response, flight: Flight) -> None:
        """Send a reply while it is made, and keep what was heard of it."""
        item = response.item
        place = {"response_id": response.id, "item_id": item.id, "output_index": 0, "content_index": 0}
        part = {"type": "output_audio", "transcript": ""} if response.spoken else {"type": "output_text", "text": ""}
        where = {"response_id": response.id, "output_index": 0}
        text_kind = "output_audio_transcript" if response.spoken else "output_text"
        fault: Exception | None = None
        try:
            await self.tell("response.created", response=self._told(response, "in_progress"))
            await self.tell("response.output_item.added", **where, item=item.shown("in_progress"))
            await self.tell("response.content_part.added", **place, part=part)
            pcm = Pcm()
            try:
                async for chunk in flight.chunks():
                    if response.cancelled:
                        continue
                    if isinstance(chunk, TextChunk) and chunk.text:
                        item.text += chunk.text
                        await self.tell(f"response.{text_kind}.delta", **place, delta=chunk.text)
                    elif isinstance(chunk, AudioChunk):
                        await self._sound(response, place, pcm.push(chunk))
                assert flight.result is not None
                if not response.cancelled:
                    replies.raise_for(flight.result)
                    await self._sound(response, place, pcm.close())
            except MultistageError as error:
                fault = error
            await self._finish(response, place, text_kind, fault)
        finally:
            self.response = None
            if self.draining:
                await self._close(GOING_AWAY)

    async def _sound(self, response: Response, place: Mapping[str, Any], data: bytes) -> None:
        if not data:
            return
        if response.first_at is None:
            response.first_at = time.perf_counter()
        response.sent_ms += len(data) // BYTES_PER_MS
        await self.tell("response.output_audio.delta", **place, delta=base64.b64encode(data).decode())

    async def _finish(
        self, response: Response, place: Mapping[str, Any], text_kind: str, fault: Exception | None
    ) -> None:
        item = response.item
        item.sound_ms = response.sent_ms
        heard_ms = response.heard_ms
        if response.cancelled and response.spoken:
            item.cut(heard_ms)
        item.parts = [{"type": "text", "text": item.text}] if item.text else []
        status = "cancelled" if response.cancelled else "failed" if fault is not None else "completed"
        if response.spoken:
            await self.tell("response.output_audio.done", **place)
            await self.tell(f"response.{text_kind}.done", **place, transcript=item.text)
        else:
            await self.tell(f"response.{text_kind}.done", **place, text=item.text)
        shown = item.shown("completed" if status == "completed" else "incomplete")
        await self.tell("response.content_part.done", **place, part=shown["content"][0])
        await self.tell("response.output_item.done", response_id=response.id, output_index=0, item=shown)
        if item.parts:
            await self._add(item)
        if response.cancelled == "turn_detected" and response.spoken:
            await self._truncated(item, heard_ms)
        await self._transcribed(response)
        if fault is not None:
            await self.tell_fault(fault)
        await self.tell("response.done", response=self._told(response, status))

    async def _transcribed(self, response: Response) -> None:
        """What a stage heard stands in place of the sound from now on."""
        result = response.flight.result if response.flight is not None else None
        heard = list(replies.transcripts(result).values()) if result is not None else []
        spoken = [item for item in self._items.values() if any(part["type"] == "audio" for part in item.parts)]
        if len(heard) == 1 and len(spoken) == 1:
            [item] = spoken
            item.text = heard[0]
            item.parts = [{"type": "text", "text": heard[0]}]
            kind = "conversation.item.input_audio_transcription.completed"
            usage = {"type": "duration", "seconds": item.sound_ms / 1000}
            await self.tell(kind, item_id=item.id, content_index=0, transcript=heard[0], usage=usage)

    def _told(self, response: Response, status: str) -> dict[str, Any]:
        result = response.flight.result if response.flight is not None else None
        output = [] if status == "in_progress" else [response.item.shown("completed")]
        details = {"type": "cancelled", "reason": response.cancelled} if response.cancelled else None
        told = {"id": response.id, "object": "realtime.response", "status": status, "status_details": details}
        sums = None
        if result is not None:
            counted = replies.usage([result])
            sums = {
                "input_tokens": counted["prompt_tokens"],
                "output_tokens": counted["completion_tokens"],
                "total_tokens": counted["total_tokens"],
            }
        kinds = ["audio"] if response.spoken else ["text"]
        return {**told, "output": output, "output_modalities": kinds, "usage": sums}


def _over(base: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Mappings of both, at any depth; `given` wins."""
    both = {**base, **given}
    for key, value in given.items():
        if isinstance(value, Mapping) and isinstance(base.get(key), Mapping):
            both[key] = _over(base[key], value)
    return both


# --- the endpoint --------------------------------------------------------------------------------------------------


@router.websocket("/v1/realtime")
async def realtime(socket: WebSocket, model: str | None = None) -> None:
    """A conversation over a websocket."""
    house = socket.app.state.house
    offered = socket.headers.get("sec-websocket-protocol", "")
    protocol = "realtime" if "realtime" in map(str.strip, offered.split(",")) else None
    await socket.accept(subprotocol=protocol)
    writing = asyncio.Lock()
    send_s = house.first.limits.send_s

    async def send(event: dict[str, Any]) -> None:
        async with writing:
            try:
                async with asyncio.timeout(send_s):
                    await socket.send_text(json.dumps(event, ensure_ascii=False))
            except TimeoutError:
                await close(TOO_SLOW)
                raise WebSocketDisconnect(TOO_SLOW) from None

    async def close(code: int) -> None:
        with suppress(RuntimeError):  # it is closed already
            await socket.close(code)

    try:
        served = house.first if model is None else house[model]
        if socket.app.state.draining:
            raise stopping()
        await served.open()
    except Exception as error:
        told = body(refused(error))["error"]
        await send({"type": "error", "event_id": replies.new_id("event_"), "error": told})
        await close(GOING_AWAY)
        return
    conversations: set[Conversation] = socket.app.state.conversations
    with Media(served.limits) as media:
        conversation = Conversation(served, media, send, close)
        conversations.add(conversation)
        try:
            await conversation.begin()
            while True:
                message = await socket.receive()
                if message["type"] == "websocket.disconnect":
                    break
                await _take(conversation, message)
        except (WebSocketDisconnect, RuntimeError):
            pass  # it has gone, or is closed
        finally:
            conversations.discard(conversation)
            await conversation.end()


async def _take(conversation: Conversation, message: Mapping[str, Any]) -> None:
    event_id = None
    try:
        text = message.get("text")
        if text is None:
            raise Refused(Problem(where="message", got="bytes", expected="text: an event in JSON"))
        event = read_event(text)
        event_id = event.event_id
        await conversation.take(event)
    except WebSocketDisconnect:
        raise
    except Exception as error:
        await conversation.tell_fault(error, event_id)
