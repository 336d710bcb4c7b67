"""What is to be said, to rows of text ids and codes that the talker reads.

A row is one text id and a code of each group; a code may be `NOTHING`. Reference: `generate` of qwen-tts's
Qwen3TTSForConditionalGeneration, which adds up embeddings where this counts ids.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import numpy as np

from framework.errors import Problem, StageError, nearest
from framework.execution.request import message_text
from framework.io.tokens import Tokenizer
from framework.parsing import read_object
from models.qwen3_talker.config import NOTHING, SPEAKER, TTSConfig

AUTO = "auto"
CHINESE = "chinese"
Row = tuple[int, Sequence[int]]
Message = Mapping[str, Any]
Float32 = np.ndarray[Any, np.dtype[np.float32]]


@attrs.frozen(kw_only=True, eq=False)
class Reference:
    """A recorded voice.

    Attributes:
        vector: float32 [hidden], how it sounds.
        codes: int32 [frames, groups] of the recording, None when its text is not known.
        text: what is said in it; "" when not known.
    """

    vector: Float32
    codes: np.ndarray[Any, np.dtype[np.int32]] | None = None
    text: str = ""


@attrs.frozen(kw_only=True, eq=False)
class Prompt:
    """What the talker reads before it speaks.

    Attributes:
        text: int64 [tokens].
        codes: int64 [tokens, groups].
        trailing: text ids of the frames that follow, one each; after them it is the padding id.
        spoken: text tokens to be said.
        vector: the voice to put in place of `SPEAKER`, float32 [hidden]; None when there is none.
        features: float32 [tokens, hidden], added to rows of media; None when there are none.
        positions: float32 [3, tokens], rotary positions; None where they are the tokens' places.
    """

    text: np.ndarray[Any, np.dtype[np.int64]]
    codes: np.ndarray[Any, np.dtype[np.int64]]
    trailing: tuple[int, ...] = ()
    spoken: int = 0
    vector: Float32 | None = None
    features: Float32 | None = None
    positions: Float32 | None = None


@attrs.define(eq=False)
class Script:
    """What one request says, as far as it is known.

    Attributes:
        prompt: None while what it is made of has not all come.
        trailing: text ids of the frames that follow it, one each.
        ended: nothing comes after them; then it is the padding id.
        spoken: text tokens among them and in the prompt.
        details: for the request's result.
    """

    prompt: Prompt | None = None
    trailing: list[int] = attrs.Factory(list)
    ended: bool = False
    spoken: int = 0
    details: dict[str, Any] = attrs.Factory(dict)

    def read(self, frames: int) -> int:
        """Text tokens that the talker has read when it has said so many frames: all."""
        return self.spoken


class TTSProcessor:
    """Tokenizer and ids of one engine folder."""

    def __init__(self, folder: Path) -> None:
        self.tokenizer = Tokenizer.load(folder)
        self.config = read_config(folder)

    def prompt(
        self,
        text: str,
        *,
        language: str = AUTO,
        voice: str = "",
        instruct: str = "",
        reference: Reference | None = None,
        streaming: bool = False,
    ) -> Prompt:
        """Rows of a request.

        Args:
            language: a name of `languages`, or auto.
            voice: a name or id of `speakers`; "" is none.
            instruct: how it shall be said; "" is none.
            reference: a voice to clone.
            streaming: read the text while speaking, a token a frame, instead of all before.

        Raises:
            StageError: a voice or language that does not exist.
        """
        config, codec = self.config, self.config.codec
        ids = self._encode(f"<|im_start|>assistant\n{text}<|im_end|>\n<|im_start|>assistant\n")
        spoken = ids[3:-5]  # without what stands around it, as the package cuts it
        speaker = speaker_id(voice, config.speakers) if voice else SPEAKER if reference is not None else None
        marks = [*self._language(language, voice), *([] if speaker is None else [speaker]), codec.pad]
        rows = [self._row(id_) for id_ in self._encode(f"<|im_start|>user\n{instruct}<|im_end|>\n") if instruct]
        rows += [self._row(id_) for id_ in ids[:3]]
        rows += [self._row(config.text_pad, mark) for mark in marks[:-1]]
        rows.append(self._row(config.text_bos, marks[-1]))
        trailing: Sequence[int] = ()
        if reference is not None and reference.codes is not None:
            known = self._encode(f"<|im_start|>assistant\n{reference.text}<|im_end|>\n")[3:-2]
            more, trailing = self._after_recording([*known, *spoken, config.text_eos], reference.codes, streaming)
            rows += more
        elif streaming:
            rows.append(self._row(spoken[0], codec.bos))
            trailing = [*spoken[1:], config.text_eos]
        else:
            rows += [self._row(id_, codec.pad) for id_ in [*spoken, config.text_eos]]
            rows.append(self._row(config.text_pad, codec.bos))
        return Prompt(
            text=np.array([id_ for id_, _ in rows], np.int64),
            codes=np.array([codes for _, codes in rows], np.int64),
            trailing=tuple(trailing),
            vector=None if reference is None else reference.vector,
            spoken=len(spoken),
        )

    def _language(self, language: str, voice: str) -> list[int]:
        """The marks that say the language; a voice with a dialect speaks it where others speak Chinese."""
        codec, languages, name = self.config.codec, self.config.languages, language.lower()
        check_language(language, languages)
        dialect = self.config.dialects.get(voice.lower())
        if dialect is not None and name in (AUTO, CHINESE):
            name = dialect
        if name == AUTO:
            return [codec.nothink, codec.think_bos, codec.think_eos]
        return [codec.think, codec.think_bos, languages[name], codec.think_eos]

    def _after_recording(self, text: Sequence[int], recording: Any, streaming: bool) -> tuple[list[Row], Sequence[int]]:
        """Rows of the text of a recording and of what shall be said after it, beside the recording's codes; what is
        left of the text."""
        pad, codec = self.config.text_pad, self.config.codec
        codes = [self._row(pad, codec.bos)[1], *recording.tolist()]
        if not streaming:
            return [*(self._row(id_, codec.pad) for id_ in text), *((pad, frame) for frame in codes)], ()
        beside = [*text, *[pad] * (len(codes) - len(text))]
        return list(zip(beside, codes, strict=False)), text[len(codes) :]

    def _row(self, text: int, code: int = NOTHING) -> Row:
        return text, [code, *[NOTHING] * (self.config.groups - 1)]

    def _encode(self, text: str) -> list[int]:
        return self.tokenizer.encode(text)


def read_config(folder: Path) -> TTSConfig:
    """What an engine folder says of its checkpoint."""
    return TTSConfig.from_checkpoint(read_object(folder / "config.json"), where=str(folder / "config.json"))


def check_language(language: str, languages: Collection[str]) -> None:
    """Raise StageError, listing the languages, for one that is none of them, in any case."""
    known = [AUTO, *languages]
    if language.lower() not in known:
        expected, hint = f"one of {', '.join(known)}", _meant(language.lower(), known)
        raise StageError(Problem(where="language", got=repr(language), expected=expected, hint=hint))


def speaker_id(voice: str, speakers: Mapping[str, int]) -> int:
    """Id of a voice, by its name in any case or by the id. Raises StageError listing the voices."""
    if voice.lower() in speakers:
        return speakers[voice.lower()]
    if voice.isdecimal() and int(voice) in speakers.values():
        return int(voice)
    expected = f"one of {', '.join(speakers)}" if speakers else "nothing: this checkpoint has no voices of its own"
    raise StageError(Problem(where="voice", got=repr(voice), expected=expected, hint=_meant(voice, speakers)))


def text_to_say(messages: Sequence[Message]) -> str:
    """What shall be said: the last message of the assistant, or where there is none that of the user.

    Raises:
        StageError: no text, something else than text, or a system message, which nobody would read.
    """
    problems = []
    for number, message in enumerate(messages):
        where, content = f"messages[{number}]", message.get("content")
        if message.get("role") == "system":
            hint = "instruct=... says how to speak"
            problems.append(Problem(where=where, got="a system message", expected="none", hint=hint))
        kinds = [] if isinstance(content, str) else [part.get("type") for part in content or ()]
        problems += [
            Problem(where=f"{where}.content", got=f"a part of type {kind!r}", expected="text")
            for kind in kinds
            if kind != "text"
        ]
    if problems:
        raise StageError(problems)
    for role in ("assistant", "user"):
        said = [message_text(message) for message in messages if message.get("role") == role]
        if said and said[-1].strip():
            return said[-1]
    raise StageError(Problem(where="messages", got="no text", expected="a message with text to say"))


def _meant(word: str, names: Iterable[str]) -> str:
    """The name that was probably meant; "" when none is near, for all of them are listed anyway."""
    hint = nearest(word, names)
    return hint if hint.startswith("did") else ""
