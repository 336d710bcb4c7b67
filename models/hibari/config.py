"""Numbers of the published network, and the settings of its stage."""

from __future__ import annotations

import attrs
from attrs import validators as v

PACKAGE = "hibari-tts 0.2.1"  # the front end; the preset names the network of the same release

SAMPLE_RATE = 24_000
MAX_PHONEMES = 400  # the longest sentence the package gives its network at once
MAX_TOKENS = MAX_PHONEMES + 2  # with the pad at each end
MAX_STEPS = 4096  # of 25 ms: 102 s of sound; the longest sentence takes half of it at half speed
SLOWEST, FASTEST = 0.5, 2.0

ENCODER = "text_encoder"  # folder of the second engine, in the folder of the first


@attrs.frozen(kw_only=True)
class Style:
    """What a request's `style` may say.

    Attributes:
        speed: 1 is as trained, 0.5 takes twice as long; None leaves it to the stage.
    """

    speed: float | None = attrs.field(default=None, validator=v.optional([v.ge(SLOWEST), v.le(FASTEST)]))


@attrs.frozen(kw_only=True)
class SpeakerConfig:
    """Settings of `hibari.speaker`.

    Attributes:
        whole_utterance: say nothing before the whole text is there, and hand on its sound as one chunk of the same
            samples.
        speed: 1 is as trained, 0.5 takes twice as long; a request's `style` has its own.
        threads: of a CPU engine; one is enough for 100 times real time, and gives the package's own samples on every
            machine (sums in another order round differently); 0 takes the backend's.
    """

    whole_utterance: bool = False
    speed: float = attrs.field(default=1.0, validator=[v.ge(SLOWEST), v.le(FASTEST)])
    threads: int = attrs.field(default=1, validator=v.ge(0))
