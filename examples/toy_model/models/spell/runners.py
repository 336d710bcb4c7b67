"""The stage that reads a text byte by byte and goes on with it."""

from collections.abc import Sequence

import numpy as np

from framework.execution.payloads import TextChunk
from framework.execution.request import message_text
from framework.execution.runner import OpenContext, Row, Runner
from framework.graph.model import InputDecl, RunnerDecl
from models.spell.config import SpellerConfig


class Speller(Runner):
    """`spell.speller`: one step is one byte, read or written."""

    decl = RunnerDecl(
        kind="autoregressive",
        inputs={"prompt": InputDecl(from_request=True)},
        ports={"text": "text"},
        required=frozenset({"prompt"}),
        config=SpellerConfig,
    )

    def open(self, context: OpenContext) -> None:
        from framework.engines.backend import open_engine

        self._engine = open_engine(context.artifact, context.backend)
        self._states = self._engine.new_states(context.batch)
        self._calls = [self._engine.bind({}, self._states, rows=slice(row, row + 1)) for row in range(context.batch)]
        self._unread: dict[int, list[int]] = {}

    def admit(self, row: Row) -> None:
        self._unread[row.index] = [*message_text(row.inputs["prompt"].value[-1]).encode()]
        self._states.clear(slice(row.index, row.index + 1))

    def ready(self, row: Row) -> bool:
        return True

    def step(self, rows: Sequence[Row]) -> None:
        for row in rows:
            call, unread, text = self._calls[row.index], self._unread[row.index], row.outputs["text"]
            call.write("id", np.array([[unread.pop(0)]]))
            call()
            if not unread:  # the next byte is the network's own
                unread.append(int(call.read("token")[0, 0]))
                text.write(TextChunk(text=chr(unread[0])))
                if text.written == self.config.length:
                    row.finish(finish_reason="length")

    def close(self) -> None:
        self._engine.close()
