"""What a Qwen3-Omni talker reads of a conversation, and of the answer while it is being written.

Reference: `generate` of transformers' Qwen3OmniMoeForConditionalGeneration, which adds up embeddings where this counts
ids. It reads the turns of the user, then nine rows that begin the answer; everything else that was said, it does not
hear of. Every further token of the answer goes beside a frame of sound.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import attrs
import numpy as np

from framework.errors import Problem, StageError
from framework.execution.payloads import HiddenChunk, TextChunk
from models.qwen3_omni.config import OmniSpeechConfig
from models.qwen3_talker.config import NOTHING
from models.qwen3_talker.processing import Prompt, Script

Float32 = np.ndarray[Any, np.dtype[np.float32]]
Int64 = np.ndarray[Any, np.dtype[np.int64]]
PRECEDING = 3  # tokens of the answer's turn before its text: the mark, `assistant` and a line break


@attrs.frozen(kw_only=True, eq=False)
class Conversation:
    """A prompt as the thinker was fed it.

    Attributes:
        ids: int64 [tokens].
        positions: float32 [3, tokens].
        hidden: float32 [media tokens, thinker's hidden], of the placeholders alone, in order.
    """

    ids: Int64
    positions: Float32
    hidden: Float32

    @classmethod
    def of(cls, chunks: Sequence[HiddenChunk], count: int, media: frozenset[int]) -> Conversation:
        """The first `count` tokens of the chunks, at least one."""
        ids, places, hidden = [], [], [np.zeros((0, chunks[0].values.shape[-1]), np.float32)]
        done = 0
        for chunk in chunks:
            size = min(len(chunk.ids), count - done)
            seen = np.isin(chunk.ids[:size], list(media))
            ids.append(chunk.ids[:size])
            hidden.append(np.asarray(chunk.values[:size][seen], np.float32))
            counted = np.broadcast_to(np.arange(done, done + size, dtype=np.float32), (3, size))
            places.append(counted if chunk.positions is None else chunk.positions[:, :size])
            done += size
            if done == count:
                break
        return cls(ids=np.concatenate(ids), positions=np.concatenate(places, axis=1), hidden=np.concatenate(hidden))


class Answer(Script):
    """A script that grows as the answer is written.

    Args:
        config: of the checkpoint.
        speaker: id of the voice.
        ends: token ids with which an answer ends.
        stops: whether the request has strings that end the answer: tokens are then spoken only when their text is
            sure to be part of it.
    """

    def __init__(
        self, config: OmniSpeechConfig, speaker: int, *, ends: frozenset[int], stops: bool, where: str
    ) -> None:
        super().__init__()
        self._config, self._speaker, self._where = config, speaker, where
        self._ends, self._stops = ends, stops
        self.words: list[int] = []  # tokens of the answer so far
        self._unsure: list[int] = []
        self._fed: list[HiddenChunk] = []  # until the prompt is made
        self._written = 0  # tokens, those that end the answer too

    def hear(self, fed: Sequence[HiddenChunk], text: Sequence[TextChunk], *, last: bool) -> None:
        """Take what the thinker was fed and what it wrote; `last`: nothing follows."""
        if self.prompt is None:
            self._fed += fed
        for chunk in text:
            self._written += len(chunk.ids)
            for token in chunk.ids:
                if token in self._ends:
                    self._say()
                    self.ended = True
                elif not self.ended:
                    self._unsure.append(token)
            if chunk.text or not self._stops:
                self._say()
        self.ended = self.ended or last
        self._follow()

    def read(self, frames: int) -> int:
        """One beside each frame."""
        return min(self.spoken, frames)

    def _say(self) -> None:
        self.words += self._unsure
        self._unsure.clear()

    def _follow(self) -> None:
        """Text of the frames behind the prompt, as far as it is known: all but the first word, then the end."""
        self.spoken = len(self.words)
        self.trailing = self.words[1:] + ([self._config.text_eos] if self.ended else [])

    @property
    def startable(self) -> bool:
        """Whether the prompt can be made: it ends with the answer's first word."""
        return self.prompt is None and self._written > 0 and bool(self.words or self.ended)

    def begin(self, project: Any) -> None:
        """Make the prompt of what was fed, unless the answer has no words; `project` gives rows float32 [n, hidden] of
        states [n, thinker's hidden].

        Raises StageError where there is no turn to answer in.
        """
        config = self._config
        # The token written last has not been fed.
        count = sum(len(chunk.ids) for chunk in self._fed) - (self._written - 1)
        talk = Conversation.of(self._fed, count, config.media)
        starts = [*np.flatnonzero(talk.ids == config.im_start).tolist(), len(talk.ids)]
        roles = [int(talk.ids[at + 1]) if at + 1 < len(talk.ids) else -1 for at in starts[:-1]]
        turns = list(zip(roles, starts[:-1], starts[1:], strict=True))
        own = [start for role, start, _ in turns if role == config.assistant]
        if not own:
            expected = "a prompt that ends with the assistant's turn, which the speech begins with"
            hint = "leave add_generation_prompt and apply_chat_template on"
            raise StageError(Problem(where=self._where, got="no assistant turn", expected=expected, hint=hint))
        opening = talk.ids[own[-1] :].tolist()
        words = opening[PRECEDING:] + self.words  # the prompt may begin the answer
        if words:
            self.words = words
            asked = [slice(start, stop) for role, start, stop in turns if role == config.user]
            self.prompt = self._rows(talk, asked, opening[:PRECEDING], project)
            self._fed.clear()
            self._follow()

    def _rows(self, talk: Conversation, asked: Sequence[slice], opening: Sequence[int], project: Any) -> Prompt:
        config = self._config
        rows = np.concatenate([np.arange(part.start, part.stop) for part in asked] or [np.zeros(0, np.int64)])
        ids = talk.ids[rows]
        media = np.isin(talk.ids, list(config.media))
        text = [*np.where(media[rows], config.no_text, ids).tolist(), *opening]
        codes = [NOTHING] * len(text)
        codec = config.codec
        marks = [codec.nothink, codec.think_bos, codec.think_eos, self._speaker, codec.pad, codec.bos]
        text += [config.text_pad] * (len(marks) - 2) + [config.text_bos, self.words[0]]
        codes += marks
        frames = np.full((len(text), config.groups), NOTHING, np.int64)
        frames[:, 0] = codes
        positions = features = None
        if media[rows].any():
            wanted, count = media[rows], len(rows)
            features = np.zeros((len(text), config.talker.hidden), np.float32)
            features[:count][wanted] = project(talk.hidden[np.cumsum(media)[rows][wanted] - 1])
            positions = np.zeros((3, len(text)), np.float32)
            positions[:, :count] = np.concatenate([*self._places(talk, asked)], axis=1)
            positions[:, count:] = positions[:, :count].max() + 1 + np.arange(len(text) - count)
        return Prompt(text=np.array(text, np.int64), codes=frames, features=features, positions=positions)

    def _places(self, talk: Conversation, parts: Sequence[slice]) -> Iterator[Float32]:
        """Rotary positions of each part behind those of the part before, as if nothing had been between them.

        A video with its own sound is as long as its tokens here: the published class tells its thinker, but not its
        talker, that sound and frames take turns.
        """
        config, start = self._config, 0.0
        joined = (talk.ids[:-1] == config.vision_start) & (talk.ids[1:] == config.audio_start)
        ends = np.flatnonzero(talk.ids == config.vision_end)
        for part in parts:
            cuts = [part.start]
            for begin in np.flatnonzero(joined):
                if part.start <= begin < part.stop:
                    cuts += [int(begin), int(ends[ends > begin][0]) + 1]
            cuts.append(part.stop)
            for number, (begin, end) in enumerate(pairwise(cuts)):
                if begin == end:
                    continue
                own = talk.positions[:, begin:end] - talk.positions[:, begin : begin + 1]
                if number % 2:
                    own = np.broadcast_to(np.arange(end - begin, dtype=np.float32), own.shape)
                yield own + start
                start += float(own.max()) + 1
