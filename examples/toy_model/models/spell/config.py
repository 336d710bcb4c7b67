"""What config.json says of a checkpoint, and the settings of the stage."""

import attrs
from attrs import validators as v

VOCAB = 256  # bytes


@attrs.frozen(kw_only=True)
class SpellConfig:
    architectures: tuple[str, ...]
    hidden: int = attrs.field(validator=v.ge(1))  # width of the state


@attrs.frozen(kw_only=True)
class SpellerConfig:
    """Settings of `spell.speller`: `length` is that of a reply, in bytes."""

    length: int = attrs.field(default=8, validator=v.ge(1))
