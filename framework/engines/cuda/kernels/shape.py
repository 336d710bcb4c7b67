"""The shape of a decoder stack, for which a kernel is compiled."""

from __future__ import annotations

from typing import Literal

import attrs
from attrs import validators as v

from framework.errors import ConfigError, Problem

MOST_COLUMNS = 8  # rows of a batch times their prompt tokens, in one product
MOST_VOCAB = 4096  # scores that a block can sort in its shared memory
MOST_WIDTH = 3072  # columns of a matrix whose vector fits the registers of a block
_STEP = 512  # columns are padded to a multiple of it: 16 warps of 32
_positive = [v.instance_of(int), v.gt(0)]


@attrs.frozen(kw_only=True)
class DecoderShape:
    """Layers of norm, attention with rotary positions and a cache, norm, and silu(gate) * up; then a norm and heads.

    Attributes:
        layers, width, heads, kv_heads, head_dim, mlp, vocab: sizes in elements.
        prompt: tokens of each row that the first step of a call reads; the following steps read one.
        steps: codes of a call; each is chosen, looked up in a table, and read by the next step.
        one_head: all steps have the same head and table; else each has its own.
        capacity: cache entries of a row.
        qk_norm: whether queries and keys are normalised by head.
        eps: of every RMSNorm.
        dtype: of matrices, table and cache. Everything else is float32, sums too.
        shaped: whether scores have a repetition penalty, a bias and codes that are never chosen.

    Raises:
        ConfigError: what the kernel cannot do, every fault at once.
    """

    layers: int = attrs.field(validator=_positive)
    width: int = attrs.field(validator=_positive)
    heads: int = attrs.field(validator=_positive)
    kv_heads: int = attrs.field(validator=_positive)
    head_dim: int = attrs.field(validator=_positive)
    mlp: int = attrs.field(validator=_positive)
    vocab: int = attrs.field(validator=_positive)
    capacity: int = attrs.field(validator=_positive)
    prompt: int = attrs.field(default=1, validator=_positive)
    steps: int = attrs.field(default=1, validator=_positive)
    one_head: bool = False
    qk_norm: bool = True
    eps: float = 1e-6
    dtype: Literal["float16", "bfloat16"] = attrs.field(default="float16", validator=v.in_(("float16", "bfloat16")))
    shaped: bool = False

    def __attrs_post_init__(self) -> None:
        limits = (
            ("width", self.width, MOST_WIDTH),
            ("heads * head_dim", self.queries, MOST_WIDTH),
            ("mlp", self.mlp, MOST_WIDTH),
            ("vocab", self.vocab, MOST_VOCAB),
            ("prompt", self.prompt, MOST_COLUMNS),
        )
        problems = [
            Problem(where=name, got=str(got), expected=f"at most {most}") for name, got, most in limits if got > most
        ]
        if self.head_dim % 32:
            problems.append(Problem(where="head_dim", got=str(self.head_dim), expected="a multiple of 32"))
        if self.heads % self.kv_heads:
            expected = f"a multiple of kv_heads={self.kv_heads}"
            problems.append(Problem(where="heads", got=str(self.heads), expected=expected))
        if self.capacity < self.prompt + self.steps - 1:
            expected = f"at least the {self.prompt + self.steps - 1} entries that one call makes"
            problems.append(Problem(where="capacity", got=str(self.capacity), expected=expected))
        if problems:
            raise ConfigError(problems)

    @property
    def queries(self) -> int:
        """Width of all query heads together."""
        return self.heads * self.head_dim

    @property
    def qkv(self) -> int:
        """Rows of the matrix that makes queries, keys and values."""
        return self.queries + 2 * self.kv_heads * self.head_dim

    @property
    def most_rows(self) -> int:
        """Rows of the largest batch a call can have."""
        return min(4, MOST_COLUMNS // self.prompt)

    @property
    def matrices(self) -> dict[str, tuple[int, int]]:
        """Rows and columns of each matrix, in the order in which a layer reads them; the head last."""
        return {
            "qkv": (self.qkv, self.width),
            "out": (self.width, self.queries),
            "gate_up": (2 * self.mlp, self.width),
            "down": (self.width, self.mlp),
            "head": (self.vocab, self.width),
        }

    @property
    def weight_bytes(self) -> int:
        """Bytes of matrices that one call reads: every step reads all layers and its head."""
        sizes = {name: 2 * rows * columns for name, (rows, columns) in self.matrices.items()}
        head = sizes.pop("head")
        return self.steps * (self.layers * sum(sizes.values()) + head)

    def blocks(self, multiprocessors: int) -> int:
        """Blocks of a launch: the fewest among which no block has more to read than it must."""

        def most_read(blocks: int) -> int:
            read = {name: -(-(rows // 8) // blocks) * columns for name, (rows, columns) in self.matrices.items()}
            return self.layers * (sum(read.values()) - read["head"]) + read["head"]

        return min(range(1, multiprocessors + 1), key=lambda blocks: (most_read(blocks), blocks))


def padded(columns: int) -> int:
    """Columns of a matrix as the kernel reads it; those added are zeros."""
    return -(-columns // _STEP) * _STEP
