"""From a request of a Qwen3-TTS graph to what the talker reads."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from framework.errors import ConfigError, Problem, StageError
from framework.execution.runner import OpenContext, Row
from models.qwen3_talker.config import SpeechConfig
from models.qwen3_talker.processing import (
    AUTO,
    Reference,
    Script,
    TTSProcessor,
    check_language,
    read_config,
    speaker_id,
    text_to_say,
)

SAMPLE_RATE = 24_000  # of a recording to clone
SHORTEST_SECONDS = 0.5  # of a recording; in less there is no voice to hear
FIELDS = ("voice", "language", "instruct", "ref_audio", "ref_text")


class TextPrompter:
    """Scripts of texts that are known from the start.

    Attributes:
        config: of the checkpoint.
    """

    config: SpeechConfig

    def __init__(self, settings: Any, context: OpenContext) -> None:
        self._settings = settings
        self._processor = TTSProcessor(context.artifact / settings.tokenizer_dir)
        self._tts = self._processor.config
        self.config = self._tts
        self._voices = self._voice_encoder(context)

    @staticmethod
    def choices(settings: Any, artifact: Path) -> Mapping[str, Sequence[str]]:
        config = read_config(artifact / settings.tokenizer_dir)
        return {"voice": tuple(config.speakers), "language": (AUTO, *config.languages)}

    @staticmethod
    def check_of(settings: Any, artifact: Path) -> Callable[[Mapping[str, Any]], None]:
        """`Runner.check_choices` of this artifact, which is read once for all requests."""
        config = read_config(artifact / settings.tokenizer_dir)

        def check(given: Mapping[str, Any]) -> None:
            if voice := given.get("voice", settings.speaker):
                speaker_id(voice, config.speakers)
            check_language(given.get("language", settings.language), config.languages)

        return check

    def script(self, row: Row) -> Script:
        """What the row says. Raises StageError where that cannot be."""
        where = f"request {row.request.index}"
        given = {name: row.inputs[name].value for name in FIELDS if name in row.inputs}
        voice = given.get("voice", self._settings.speaker)
        instruct = given.get("instruct", "")
        ignored = bool(instruct) and not self._tts.takes_instruct
        text, clones = self._settings.text, self._tts.kind == "base"
        prompt = self._processor.prompt(
            text_to_say(_messages(row)),
            language=given.get("language", self._settings.language),
            voice=voice,
            instruct="" if ignored else instruct,
            reference=(reference := self._reference(given, where)),
            streaming=text == "streaming" or (text == "auto" and clones),
        )
        if "context" in row.outputs:
            if reference is not None and reference.codes is not None:
                row.outputs["context"].write(reference.codes)
            row.outputs["context"].close()
        details = {"voice": voice} if voice else {}
        if ignored:
            details["ignored"] = "instruct: this checkpoint was trained without"
        return Script(prompt=prompt, trailing=list(prompt.trailing), ended=True, spoken=prompt.spoken, details=details)

    def listen(self, row: Row, script: Script) -> None:
        """Nothing comes later."""

    def close(self) -> None:
        if self._voices is not None:
            self._voices.close()

    def _voice_encoder(self, context: OpenContext) -> Any:
        codec, speaker = self._settings.speech_tokenizer_encoder_artifact, self._settings.speaker_encoder_artifact
        if not codec or not speaker:
            return None
        from models.qwen3_codec.processing import VoiceEncoder

        return VoiceEncoder(context.artifact / codec, context.artifact / speaker, context.backend)

    def _reference(self, given: Mapping[str, Any], where: str) -> Reference | None:
        """The voice to clone, None for a checkpoint with its own. Raises StageError where it lacks or is none."""
        from framework.io.audio import load_audio

        if "ref_audio" not in given:
            if "ref_text" in given:
                expected = "ref_audio, the recording it is the text of"
                raise StageError(Problem(where=f"{where}: ref_text", got="no ref_audio", expected=expected))
            if self._tts.kind == "base":
                expected = "a recording of the voice to speak with, and if known ref_text, what is said in it"
                raise StageError(Problem(where=f"{where}: ref_audio", got="nothing", expected=expected))
            return None
        if self._voices is None:
            expected = "nothing: this checkpoint does not clone, or was built without its encoders"
            raise StageError(Problem(where=f"{where}: ref_audio", got=repr(given["ref_audio"]), expected=expected))
        try:
            samples = load_audio(Path(given["ref_audio"]), SAMPLE_RATE)
        except ConfigError as error:
            raise StageError(error.problems) from error
        seconds = len(samples) / SAMPLE_RATE
        if not SHORTEST_SECONDS <= seconds <= self._voices.longest / SAMPLE_RATE:
            expected = f"{SHORTEST_SECONDS} to {self._voices.longest // SAMPLE_RATE} s of a voice"
            raise StageError(Problem(where=f"{where}: ref_audio", got=f"{seconds:.2f} s", expected=expected))
        text = given.get("ref_text", "")
        codes = self._voices.codes(samples) if text else None
        return Reference(vector=self._voices.speaker(samples), codes=codes, text=text)


def _messages(row: Row) -> Sequence[Mapping[str, Any]]:
    """A request's messages, or text of another stage."""
    chunks = row.inputs["text"].drain()
    if chunks and hasattr(chunks[0], "text"):
        return [{"role": "assistant", "content": "".join(chunk.text for chunk in chunks)}]
    return list(chunks[0]) if chunks else []
