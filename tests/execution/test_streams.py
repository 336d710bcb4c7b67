from __future__ import annotations

import gc
import weakref

import pytest

from framework.execution.streams import Stream, constant


def test_every_reader_gets_every_chunk_in_order_at_its_own_pace() -> None:
    stream = Stream(8)
    one, other = stream.reader(streaming=True), stream.reader(streaming=False)
    for chunk in "abc":
        stream.writer.write(chunk)
    assert [one.take(), one.take()] == ["a", "b"]
    assert other.drain() == ["a", "b", "c"]
    stream.writer.write("d")
    assert one.drain() == ["c", "d"]
    assert other.take() == "d"


def test_peek_leaves_the_chunk_and_take_removes_it() -> None:
    stream = Stream(8)
    reader = stream.reader(streaming=True)
    stream.writer.write("a")
    assert (reader.peek(), reader.available) == ("a", 1)
    assert (reader.take(), reader.available) == ("a", 0)
    with pytest.raises(IndexError):
        reader.take()
    with pytest.raises(IndexError):
        reader.peek()
    assert reader.drain() == []


def test_complete_means_closed_and_ended_means_nothing_left() -> None:
    stream = Stream(8)
    reader = stream.reader(streaming=True)
    stream.writer.write("a")
    assert not reader.complete
    stream.writer.close()
    stream.writer.close()
    assert stream.writer.closed and reader.complete and not reader.ended
    reader.take()
    assert reader.ended


def test_writing_after_close_is_an_error() -> None:
    stream = Stream(8)
    stream.writer.close()
    with pytest.raises(RuntimeError, match="after the stream was closed"):
        stream.writer.write("a")


def test_a_streaming_reader_bounds_the_writer_until_it_takes() -> None:
    stream = Stream(2)
    reader = stream.reader(streaming=True)
    stream.writer.write("a")
    assert stream.writer.room
    stream.writer.write("b")
    assert not stream.writer.room
    stream.writer.write("c")  # within one step: taken all the same
    reader.take()
    assert not stream.writer.room
    reader.take()
    assert stream.writer.room


def test_a_reader_that_waits_for_everything_never_bounds_the_writer() -> None:
    stream = Stream(2)
    reader = stream.reader(streaming=False)
    for number in range(100):
        assert stream.writer.room
        stream.writer.write(number)
    assert reader.available == 100


def test_the_slowest_streaming_reader_decides_and_a_detached_one_does_not() -> None:
    stream = Stream(1)
    fast, slow = stream.reader(streaming=True), stream.reader(streaming=True)
    stream.writer.write("a")
    fast.take()
    assert not stream.writer.room
    slow.detach()
    slow.detach()
    assert stream.writer.room


def test_growing_makes_room_for_one_more_chunk() -> None:
    stream = Stream(1)
    stream.reader(streaming=True)
    for chunk in "abc":
        stream.writer.write(chunk)
    stream.writer.grow()
    assert stream.writer.room
    stream.writer.write("d")
    assert not stream.writer.room


class Chunk:
    pass


@pytest.mark.parametrize("how", ["all took it", "nobody reads", "the last reader left"])
def test_chunks_are_dropped_when(how: str) -> None:
    stream = Stream(8)
    readers = [] if how == "nobody reads" else [stream.reader(streaming=True) for _ in range(2)]
    chunk = Chunk()
    alive = weakref.ref(chunk)
    stream.writer.write(chunk)
    del chunk
    for reader in readers:
        assert alive() is not None
        if how == "all took it":
            reader.take()
        else:
            reader.detach()
    gc.collect()
    assert alive() is None
    assert stream.writer.written == 1


def test_a_port_nobody_reads_is_not_wanted() -> None:
    stream = Stream(8)
    assert not stream.writer.wanted
    stream.reader(streaming=False)
    assert stream.writer.wanted


def test_a_request_field_is_a_closed_stream_of_one_chunk() -> None:
    field = constant({"role": "user"})
    assert field.complete and field.available == 1
    assert field.value == {"role": "user"}
    assert field.value is field.take()
    assert field.ended


@pytest.mark.parametrize(("chunks", "closed"), [((), True), (("a", "b"), True), (("a",), False)])
def test_value_wants_exactly_one_chunk(chunks: tuple[str, ...], closed: bool) -> None:
    stream = Stream(8)
    reader = stream.reader(streaming=False)
    for chunk in chunks:
        stream.writer.write(chunk)
    if closed:
        stream.writer.close()
    with pytest.raises(ValueError, match=f"got {len(chunks)} chunks unread, {'closed' if closed else 'open'}"):
        _ = reader.value
