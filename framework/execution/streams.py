"""Streams of chunks: one for each port of each request, written by one stage and read by any number.

A streaming reader holds its writer back once it is `capacity` chunks behind. A reader that waits for everything,
and the caller at a terminal, never do. A chunk is dropped as soon as every reader has taken it.
"""

from __future__ import annotations

from collections import deque
from itertools import islice
from typing import Any


class Stream:
    """The chunks between one `Writer` and its readers. Readers are attached before the first chunk is written."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.closed = False
        self.written = 0
        self.writer = Writer(self)
        self._readers: list[Reader] = []
        self._chunks: deque[Any] = deque()  # positions written - len(_chunks) to written - 1

    def reader(self, *, streaming: bool) -> Reader:
        """A new reader; `streaming` ones bound the writer."""
        reader = Reader(self, streaming=streaming, position=self.written)
        self._readers.append(reader)
        return reader

    @property
    def wanted(self) -> bool:
        return bool(self._readers)

    @property
    def full(self) -> bool:
        for reader in self._readers:  # noqa: SIM110 - asked before every step, where a generator costs
            if reader.streaming and self.written - reader._position >= self.capacity:
                return True
        return False

    def _put(self, chunk: Any) -> None:
        if self.closed:
            raise RuntimeError("a chunk was written after the stream was closed")
        self.written += 1
        if self._readers:
            self._chunks.append(chunk)

    def _at(self, position: int) -> Any:
        return self._chunks[position - (self.written - len(self._chunks))]

    def _from(self, position: int) -> islice[Any]:
        return islice(self._chunks, position - (self.written - len(self._chunks)), None)

    def _drop(self) -> None:
        kept = self.written - min((reader._position for reader in self._readers), default=self.written)
        while len(self._chunks) > kept:
            self._chunks.popleft()

    def _detach(self, reader: Reader) -> None:
        if reader in self._readers:
            self._readers.remove(reader)
            self._drop()


class Writer:
    """What a stage holds of an output port."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream

    @property
    def room(self) -> bool:
        """False when a streaming reader is `capacity` chunks behind. The executor then does not step the row;
        chunks written within a step that began with room are always taken."""
        return not self._stream.full

    @property
    def wanted(self) -> bool:
        """False when nobody reads the port in this request, so that its work may be saved."""
        return self._stream.wanted

    @property
    def written(self) -> int:
        """Chunks written so far."""
        return self._stream.written

    @property
    def closed(self) -> bool:
        return self._stream.closed

    def write(self, chunk: Any) -> None:
        """Raises RuntimeError after `close`."""
        self._stream._put(chunk)

    def close(self) -> None:
        """No more chunks will come; may be called again."""
        self._stream.closed = True

    def limit(self, chunks: int) -> None:
        """Hold this stage back once the furthest streaming reader is so many chunks behind, if not sooner."""
        self._stream.capacity = min(self._stream.capacity, chunks)

    def grow(self) -> None:
        """Make room for one more chunk than the furthest streaming reader is behind."""
        while self._stream.full:
            self._stream.capacity += 1


class Reader:
    """What a stage holds of an input: its own place in the stream."""

    def __init__(self, stream: Stream, *, streaming: bool, position: int) -> None:
        self.streaming = streaming
        self._stream = stream
        self._position = position

    @property
    def available(self) -> int:
        """Chunks that can be taken now."""
        return self._stream.written - self._position

    @property
    def complete(self) -> bool:
        """No more chunks will come; some may still be there to take."""
        return self._stream.closed

    @property
    def ended(self) -> bool:
        """Complete, and everything taken."""
        return self.complete and not self.available

    @property
    def value(self) -> Any:
        """The only chunk, left in place: how a request field is read. ValueError when it is not exactly one."""
        if not self.complete or self.available != 1:
            raise ValueError(f"expected one chunk in a closed stream, got {self.describe()}")
        return self.peek()

    def peek(self) -> Any:
        """The next chunk, left in place; IndexError when there is none."""
        if self._position == self._stream.written:
            raise IndexError("no chunk to read")
        return self._stream._at(self._position)

    def take(self) -> Any:
        """The next chunk; IndexError when there is none."""
        chunk = self.peek()
        self._position += 1
        self._stream._drop()
        return chunk

    def drain(self) -> list[Any]:
        """All chunks that are there now."""
        stream = self._stream
        if self._position == stream.written:
            return []
        position, self._position = self._position, stream.written
        if stream._readers == [self]:  # as nearly always, after every step
            chunks = list(stream._chunks)
            stream._chunks.clear()
            return chunks
        chunks = list(stream._from(position))
        stream._drop()
        return chunks

    def detach(self) -> None:
        """Stop reading: the writer waits for this reader no longer."""
        self._stream._detach(self)

    def describe(self) -> str:
        """E.g. `2 chunks unread, open`, for messages."""
        return f"{self.available} chunks unread, {'closed' if self.complete else 'open'}"


def constant(value: Any) -> Reader:
    """A closed stream of one chunk: a request field."""
    stream = Stream(1)
    reader = stream.reader(streaming=False)
    stream.writer.write(value)
    stream.writer.close()
    return reader
