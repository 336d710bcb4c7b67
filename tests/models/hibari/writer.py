"""A stage that writes as a language model does, a chunk a step."""

from __future__ import annotations

from collections.abc import Sequence

from framework.compile.family import BuildOptions
from framework.engines.ort.backend import OnnxRuntimeCpu
from framework.execution.payloads import TextChunk
from framework.execution.runner import Row, Runner
from framework.graph.model import Input, InputDecl, RunnerDecl, Source

CPU = OnnxRuntimeCpu(threads=2, spin="in_call")
INT8 = BuildOptions(precision="int8")
CHUNKS = Input(name="chunks", source=Source("request", "chunks"))


class Writer(Runner):
    """Hands on the chunks of the request field `chunks`, one a step, as a language model writes."""

    decl = RunnerDecl(kind="host", inputs={"chunks": InputDecl(from_request=True)}, ports={"text": "text"})

    def admit(self, row: Row) -> None:
        row.details["left"] = list(row.inputs["chunks"].value)

    def ready(self, row: Row) -> bool:
        return True

    def step(self, rows: Sequence[Row]) -> None:
        for row in rows:
            if row.details["left"]:
                row.outputs["text"].write(TextChunk(text=row.details["left"].pop(0)))
            if not row.details["left"]:
                row.finish()
