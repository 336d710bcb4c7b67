"""The runners that graph files call `qwen3_omni.talker` and `qwen3_omni.code2wav`; the first says what a thinker is
writing, or the text of a request."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import attrs
from attrs import validators as v

from framework.errors import ConfigError, Problem, StageError
from framework.execution.runner import OpenContext, Row
from framework.execution.sampling import Sampling
from framework.graph.model import InputDecl, Stage
from models.qwen3_codec.runners import Code2Wav
from models.qwen3_talker import runners as shared

__all__ = ["Code2Wav", "Talker", "TalkerConfig"]

BUILDERS = {"tts": ("text",), "segments": ("hidden", "text_ids")}  # and the inputs that each needs
# What the code predictor does where nothing is said: fixed in the published class.
PREDICTOR = {"temperature": 1.0, "top_p": 0.8}


@attrs.frozen(kw_only=True)
class TalkerConfig(shared.TalkerConfig):
    """Settings of `qwen3_omni.talker`.

    Attributes:
        prefill_builder: what the prompt is made of; `tts` is the text of the request, `segments` the turns of a
            conversation and the answer that a thinker writes. "" follows from the stage's inputs.
        wait_for_text: speak when the thinker has written all, not while it writes; the speech is the same.
        projection_artifact: folder of the engine for what the thinker saw and heard, relative to the artifact.
        cp_temperature, cp_top_p: None is what the published class for the kind of talker does; with `segments`, a code
            predictor beside a greedy talker is greedy too.
    """

    prefill_builder: Literal["", "tts", "segments"] = attrs.field(default="", validator=v.in_(("", *BUILDERS)))  # type: ignore[assignment]
    wait_for_text: bool = False
    projection_artifact: str = "../hidden_projection"
    cp_temperature: float | None = attrs.field(default=None, validator=v.optional(v.ge(0.0)))  # type: ignore[assignment]
    cp_top_p: float | None = attrs.field(default=None, validator=v.optional([v.gt(0.0), v.le(1.0)]))  # type: ignore[assignment]


class Talker(shared.Talker):
    """Says text on port `codes`, int32 [1, 16] a frame; on `context` the frames of a cloned recording."""

    decl = attrs.evolve(
        shared.Talker.decl,
        inputs={
            **shared.Talker.decl.inputs,
            "hidden": InputDecl(kinds=frozenset({"hidden"}), streaming=True),
            "text_ids": InputDecl(kinds=frozenset({"text"}), streaming=True),
        },
        required=frozenset(),
        alternatives=tuple(frozenset(names) for names in BUILDERS.values()),
        config=TalkerConfig,
        folders={**shared.Talker.decl.folders, "projection_artifact": ""},
    )

    config: TalkerConfig

    def __init__(self, *, stage: Stage, config: TalkerConfig | None = None) -> None:
        super().__init__(stage=stage, config=config or TalkerConfig())
        names = {item.name for item in stage.inputs}
        builder = self.config.prefill_builder or ("segments" if "hidden" in names else "tts")
        self._segments = builder == "segments"
        if lacking := [name for name in BUILDERS[builder] if name not in names]:
            where = f"stages.{stage.id}.inputs"
            expected = f"it bound: with prefill_builder {builder} the talker cannot run without"
            raise ConfigError([Problem(where=where, got=f"no input {name!r}", expected=expected) for name in lacking])

    def _prompters(self) -> Any:
        return AnswerPrompter if self._segments else super()._prompters()

    def _predictor(self, talker: Sampling) -> dict[str, Any]:
        """Defaults of the code predictor."""
        given = super()._predictor(talker)
        greedy = self._segments and talker.temperature == 0
        usual = {**PREDICTOR, **({"temperature": 0.0} if greedy else {})} if self._segments else shared.PREDICTOR
        return {name: usual[name] if value is None else value for name, value in given.items()}


class AnswerPrompter:
    """Scripts of answers that are being written."""

    def __init__(self, settings: TalkerConfig, context: OpenContext) -> None:
        from framework.io.tokens import Tokenizer

        self._settings, self._context = settings, context
        folder = context.artifact / settings.tokenizer_dir
        self.config = _read(folder)
        self._ends = frozenset(Tokenizer.load(folder).eos_ids)
        self._projection: Any = None

    @staticmethod
    def choices(settings: TalkerConfig, artifact: Path) -> Mapping[str, Sequence[str]]:
        return {"voice": tuple(_read(artifact / settings.tokenizer_dir).speakers)}

    @staticmethod
    def check_of(settings: TalkerConfig, artifact: Path) -> Callable[[Mapping[str, Any]], None]:
        """`Runner.check_choices` of this artifact, which is read once for all requests."""
        config = _read(artifact / settings.tokenizer_dir)

        def check(given: Mapping[str, Any]) -> None:
            _voice(settings, config, given.get("voice", ""))

        return check

    def script(self, row: Row) -> Any:
        """What the row says, as far as it is known: nothing. Raises StageError for a voice that is not there."""
        from models.qwen3_omni.processing import Answer

        given = row.inputs["voice"].value if "voice" in row.inputs else ""
        voice, speaker = _voice(self._settings, self.config, given)
        answer = Answer(
            self.config,
            speaker,
            ends=self._ends,
            stops=bool(row.request.sampling_for("default").stop),
            where=f"request {row.request.index}: prompt",
        )
        answer.details["voice"] = voice
        return answer

    def listen(self, row: Row, script: Any) -> None:
        """Take what the thinker has written; make the prompt when its first word is there."""
        text = row.inputs["text_ids"]
        script.hear(row.inputs["hidden"].drain(), text.drain(), last=text.complete)
        if script.startable and (script.ended or not self._settings.wait_for_text):
            script.begin(self._project)

    def close(self) -> None:
        if self._projection is not None:
            self._projection.close()

    def _project(self, hidden: Any) -> Any:
        """float32 [rows, thinker's hidden] -> [rows, talker's hidden]."""
        import numpy as np

        if self._projection is None:
            from framework.engines import manifest
            from framework.engines.backend import open_engine

            folder = self._context.artifact / self._settings.projection_artifact
            if not (folder / manifest.FILE_NAME).is_file():
                expected = "the engine hidden_projection, without which the talker cannot read images, sound and video"
                raise StageError(Problem(where=str(folder), got="nothing", expected=expected))
            self._projection = open_engine(folder, self._context.backend)
        most = self._projection.spec.caps["rows"]
        parts = [hidden[start : start + most] for start in range(0, len(hidden), most)]
        return np.concatenate([self._projection.run({"hidden": part})["features"] for part in parts])


def _voice(settings: TalkerConfig, config: Any, given: str) -> tuple[str, int]:
    """Name and id of the voice to speak with. Raises StageError for one that is not there."""
    from models.qwen3_talker.processing import speaker_id

    voice = given or settings.speaker or config.default_speaker
    return voice, speaker_id(voice, config.speakers)


def _read(folder: Path) -> Any:
    from framework.parsing import read_object
    from models.qwen3_omni.config import OmniSpeechConfig

    return OmniSpeechConfig.from_checkpoint(read_object(folder / "config.json"), where=str(folder / "config.json"))
