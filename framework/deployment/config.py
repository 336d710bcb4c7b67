"""The composed configuration of each command, typed; `structure` reads it with every fault at once."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs

from framework.checkpoints.fetch import Source
from framework.compile.family import BuildOptions
from framework.errors import ConfigError, Problem
from framework.schema import structure

Node = Mapping[str, Any]  # with a `_target_`, or a table of such


@attrs.frozen(kw_only=True)
class Paths:
    """See `conf/paths`."""

    cache: Path
    engines: Path
    weights: Path
    outputs: Path


@attrs.frozen(kw_only=True)
class Preset:
    """See `conf/deployment/none.yaml`."""

    description: str = ""
    needs: str = ""
    size: str = ""
    architectures: tuple[str, ...] = ()
    source: Source | None = None
    model_dir: Path | None = None
    engine_dir: Path | None = None
    stages: Node = attrs.field(factory=dict)
    build: Node = attrs.field(factory=dict)  # read where `build` refers to it
    parts: Mapping[str, Preset] = attrs.field(factory=dict)

    @property
    def options(self) -> BuildOptions:
        return structure(BuildOptions, self.build, where="deployment.build")


@attrs.frozen(kw_only=True)
class BuildNode(BuildOptions):
    """See `conf/build`: the options of a build, and whether to build at all."""

    graph_only: bool = False

    @property
    def options(self) -> BuildOptions:
        return BuildOptions(**{field.name: getattr(self, field.name) for field in attrs.fields(BuildOptions)})


@attrs.frozen(kw_only=True)
class Base:
    """What every command that knows a deployment has."""

    paths: Paths
    deployment: Preset
    explain: bool = False


@attrs.frozen(kw_only=True)
class FetchConfig(Base):
    """See `conf/fetch.yaml`."""


@attrs.frozen(kw_only=True)
class ReportOptions:
    """See `conf/report`."""

    page: bool = True
    transcribe: str | None = None
    embed_mb: float = attrs.field(default=24.0, validator=attrs.validators.ge(0))


@attrs.frozen(kw_only=True)
class ReportConfig:
    """See `conf/report.yaml`."""

    paths: Paths
    report: ReportOptions
    folder: Path | None = None
    explain: bool = False


@attrs.frozen(kw_only=True)
class BuildConfig(Base):
    """See `conf/build.yaml`."""

    build: BuildNode
    backend: Node
    runners: Node
    families: Node
    engine_dir: Path | None = None
    model_dir: Path | None = None
    plan_memory: bool = False


@attrs.frozen(kw_only=True)
class Shard:
    """The requests of a file that one of many machines does: `index`, `index + count` and so on."""

    index: int = attrs.field(default=0, validator=attrs.validators.ge(0))
    count: int = attrs.field(default=1, validator=attrs.validators.ge(1))


@attrs.frozen(kw_only=True)
class InferenceConfig(BuildConfig):
    """See `conf/inference.yaml`, whose comments say what each is."""

    sampling: Node
    style: Node
    batching: Node
    backends: Node = attrs.field(factory=dict)
    report: ReportOptions
    stages: Node = attrs.field(factory=dict)
    build_if_missing: bool = False

    prompt: str | None = None
    prompt_file: str | None = None
    system: str | None = None
    audio: str | tuple[str, ...] | None = None
    image: str | tuple[str, ...] | None = None
    video: str | tuple[str, ...] | None = None
    fps: float | None = None
    use_audio_in_video: bool | None = None
    voice: str | None = None
    language: str | None = None
    instruct: str | None = None
    ref_audio: Path | None = None
    ref_text: str | None = None
    out_audio: Path | None = None
    out_timeline: Path | None = None
    out_video: Path | None = None
    outputs: Mapping[str, Path] = attrs.field(factory=dict)

    input_file: Path | None = None
    output_file: Path | None = None
    output_audio_dir: Path | None = None
    output_video_dir: Path | None = None
    resume: bool | None = None
    shard: Shard = attrs.field(factory=Shard)

    whole_utterance: bool | None = None
    apply_chat_template: bool = True
    add_generation_prompt: bool = True
    enable_thinking: bool = False
    spec_decode: bool = False
    enable_context_reuse: bool = False
    visual_prune: float | None = None
    lora_weights: Mapping[str, str] | None = None
    stream_capacity: int = attrs.field(default=64, validator=attrs.validators.ge(1))
    keep_loaded: int = attrs.field(default=2, validator=attrs.validators.ge(0))
    keep_loaded_bytes: int = attrs.field(default=0, validator=attrs.validators.ge(0))

    validate_config: bool = False
    list_voices: bool = False
    list_deployments: bool = False
    dump_profile: bool = False


@attrs.frozen(kw_only=True)
class BenchOptions:
    """Of `multistage-bench`, beside what a request has."""

    warmup: int = attrs.field(default=1, validator=attrs.validators.ge(0))
    rounds: int = attrs.field(default=5, validator=attrs.validators.ge(1))
    json: Path | None = None


@attrs.frozen(kw_only=True)
class BenchConfig(InferenceConfig):
    """See `conf/bench.yaml`."""

    bench: BenchOptions = attrs.field(factory=BenchOptions)


# Settings that name where an output of a kind of payload goes; `outputs` names that of any kind.
OUTPUTS = {"out_audio": "audio", "output_audio_dir": "audio", "out_video": "video", "output_video_dir": "video"}

ONE_REQUEST = (
    *("prompt", "prompt_file", "system", "audio", "image", "video", "fps", "use_audio_in_video"),
    *("out_audio", "out_timeline", "out_video"),
)
FILE = ("output_file", "output_audio_dir", "output_video_dir")

# Accepted from the start, and refused when used until something here can do it.
_NOT_YET = {
    "out_video": "no model here makes video yet",
    "output_video_dir": "no model here makes video yet",
    "spec_decode": "speculative decoding is not there yet",
    "enable_context_reuse": "reuse of cached prompt prefixes is not there yet",
    "visual_prune": "pruning of visual tokens is not there yet",
    "lora_weights": "LoRA adapters are not there yet",
}


def check_combination(config: InferenceConfig) -> None:
    """What may stand alone but not together, and what is not there yet. Raises ConfigError with all of it."""
    problems = [
        Problem(where=key, got=_shown(getattr(config, key)), expected=f"nothing: {why}")
        for key, why in _NOT_YET.items()
        if getattr(config, key)
    ]
    given = [key for key in ONE_REQUEST if getattr(config, key) is not None]
    if config.input_file is not None:
        problems += [
            Problem(where=key, got=_shown(getattr(config, key)), expected="nothing beside input_file", hint=hint)
            for key in given
            for hint in ["output_audio_dir=DIR speaks the replies of a file" if key == "out_audio" else ""]
        ]
    else:
        problems += [
            Problem(where=key, got=_shown(getattr(config, key)), expected="nothing without input_file")
            for key in FILE
            if getattr(config, key) is not None and key not in _NOT_YET
        ]
    problems += _shard_problems(config)
    if config.prompt is not None and config.prompt_file is not None:
        problems.append(
            Problem(where="prompt_file", got=config.prompt_file, expected="prompt or prompt_file, not both")
        )
    asks = config.input_file is not None or {*given} & {"prompt", "prompt_file", "audio", "image", "video"}
    if not asks and not (config.validate_config or config.list_voices or config.plan_memory):
        hint = 'deployment=smollm2 prompt="Hello", or input_file=requests.json; list_deployments=true, --help'
        problems.append(Problem(where="prompt", got="nothing", expected="a request", hint=hint))
    if config.output_file is not None and config.output_file.is_dir():
        problems.append(Problem(where="output_file", got=f"'{config.output_file}'", expected="a file, not a folder"))
    if config.out_audio is not None and config.out_audio.suffix.lower() != ".wav":
        problems.append(Problem(where="out_audio", got=f"'{config.out_audio}'", expected="a file name in .wav"))
    if problems:
        raise ConfigError(problems)


# What a command does once, and ends.
_COMMANDS = (
    "input_file",
    "resume",
    "validate_config",
    "list_voices",
    "plan_memory",
    "list_deployments",
    "dump_profile",
)


def check_standing(config: InferenceConfig) -> None:
    """For a deployment that is opened without a request: raise ConfigError for what belongs to one, or to a command."""
    given = [key for key in (*ONE_REQUEST, *FILE, *_COMMANDS) if getattr(config, key) not in (None, False)]
    problems = [
        Problem(where=key, got=_shown(getattr(config, key)), expected="nothing: it belongs to a request or a command")
        for key in given
        if key not in _NOT_YET
    ]
    problems += [
        Problem(where=key, got=_shown(getattr(config, key)), expected=f"nothing: {why}")
        for key, why in _NOT_YET.items()
        if getattr(config, key)
    ]
    if problems:
        raise ConfigError(problems)


def _shard_problems(config: InferenceConfig) -> list[Problem]:
    problems = []
    shard, file = config.shard, config.input_file is not None
    if shard.count > 1 and not file:
        problems.append(Problem(where="shard.count", got=str(shard.count), expected="1 without input_file"))
    if shard.index >= shard.count:
        expected = f"a whole number below shard.count, {shard.count}"
        problems.append(Problem(where="shard.index", got=str(shard.index), expected=expected))
    if config.resume is not None and not file:
        problems.append(Problem(where="resume", got=_shown(config.resume), expected="nothing without input_file"))
    if config.resume and file and config.output_file is None:
        hint = "output_file=FILE, the file of the run to go on with"
        problems.append(Problem(where="output_file", got="nothing", expected="a file with resume=true", hint=hint))
    return problems


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return repr(str(value)) if isinstance(value, Path) else repr(value)
