"""Request files: the original's formats, every fault named, one bad request among good ones its own."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from framework.errors import ConfigError
from framework.execution.request import Request
from framework.io.requests import Defaults, Rejected, RequestFile, load_requests


def load(*requests: Any, defaults: Defaults | None = None, **top: Any) -> RequestFile:
    return load_requests({**top, "requests": list(requests)}, defaults=defaults)


def only(*requests: Any, **top: Any) -> Request:
    (entry,) = load(*requests, **top).entries
    assert isinstance(entry, Request), entry.error
    return entry


def faults(request: Any, **top: Any) -> list[str]:
    (entry,) = load(request, **top).entries
    assert isinstance(entry, Rejected)
    return [str(problem) for problem in entry.error.problems]


def user(*parts: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": list(parts)}]}


TEXT = {"type": "text", "text": "Hello"}


# --- what a request becomes ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "request_",
    [
        {"prompt": "Hello"},
        {"messages": [{"role": "user", "content": "Hello"}]},
        {"messages": [{"role": "user", "content": [TEXT]}]},
    ],
    ids=["short", "text", "parts"],
)
def test_every_spelling_of_a_message_becomes_one(request_: Any) -> None:
    assert only(request_).fields["messages"] == [{"role": "user", "content": [TEXT]}]


def test_a_system_message_stands_first() -> None:
    roles = [message["role"] for message in only({"prompt": "Hello", "system": "Be brief."}).fields["messages"]]
    assert roles == ["system", "user"]


def test_media_become_fields_with_paths_from_the_folder_of_the_file(tmp_path: Path) -> None:
    for name in ("a.wav", "b.png", "c.png"):
        (tmp_path / name).touch()
    file = tmp_path / "requests.json"
    image = {"type": "image", "image": "b.png", "do_resize": False}
    video = {"type": "video", "frames": ["b.png", "c.png"], "fps": 2.0}
    file.write_text(json.dumps({"requests": [user(TEXT, image, {"type": "audio", "audio": "a.wav"}, video)]}))
    (request,) = load_requests(file).good
    assert request.fields["audio"] == (f"{tmp_path}/a.wav",)
    assert request.fields["image"] == (f"{tmp_path}/b.png",)
    assert request.fields["video"] == (f"{tmp_path}/b.png", f"{tmp_path}/c.png")
    assert request.fields["messages"][0]["content"][1] == {**image, "image": f"{tmp_path}/b.png"}


def test_a_field_that_is_not_given_is_absent() -> None:
    assert set(only({"prompt": "Hello", "speaker": ""}).fields) == {"messages"}


def test_the_speaker_is_the_voice() -> None:
    assert only({"prompt": "a"}, speaker="ryan").fields["voice"] == "ryan"
    assert only({"prompt": "a", "speaker": "sohee"}, speaker="ryan").fields["voice"] == "sohee"
    assert only({"prompt": "a", "language": "english"}, instruct="softly").fields.items() >= {
        ("language", "english"),
        ("instruct", "softly"),
    }


def test_switches_are_options_and_the_request_wins() -> None:
    request = only({"prompt": "a", "enable_thinking": True}, enable_thinking=False, apply_chat_template=False)
    assert request.options == {"enable_thinking": True, "apply_chat_template": False}


def test_modalities_choose_among_what_the_run_writes() -> None:
    spoken = Defaults(kinds=frozenset({"text", "audio"}))
    asked: list[dict[str, Any]] = [{}, {"modalities": ["text"]}, {"modalities": ["text", "audio"]}]
    kinds = [set(request.kinds) for request in load(*({"prompt": "a", **one} for one in asked), defaults=spoken).good]
    assert kinds == [{"text", "audio"}, {"text"}, {"text", "audio"}]


def test_index_is_the_position_in_the_file() -> None:
    assert [entry.index for entry in load({"prompt": "a"}, {}, {"prompt": "c"}).entries] == [0, 1, 2]


# --- sampling ------------------------------------------------------------------------------------------------------


def test_only_what_was_given_is_there() -> None:
    assert only({"prompt": "a"}).sampling == {}


def test_layers_from_the_command_line_to_the_request() -> None:
    defaults = Defaults(sampling={"default": {"temperature": 0.1, "top_k": 1, "min_p": 0.1}})
    (request,) = load({"prompt": "a", "sampling": {"top_k": 3}}, defaults=defaults, temperature=0.2, top_k=2).good
    assert request.sampling["default"] == {"temperature": 0.2, "top_k": 3, "min_p": 0.1}


def test_prefixes_are_roles_at_the_top_and_in_each_request() -> None:
    top = {"talker_temperature": 0.9, "subtalker_top_p": 0.8, "max_audio_length": 100}
    request = only({"prompt": "a", "sampling": {"talker_temperature": 0.8, "cp_top_k": 7}}, **top)
    assert request.sampling == {
        "talker": {"temperature": 0.8, "max_generate_length": 100},
        "code_predictor": {"top_p": 0.8, "top_k": 7},
    }


def test_zero_for_a_subtalker_setting_is_not_given() -> None:
    assert only({"prompt": "a"}, subtalker_temperature=0, subtalker_top_k=0, subtalker_top_p=0).sampling == {}


def test_repetition_penalty_is_the_talkers_too() -> None:
    sampling = only({"prompt": "a"}, repetition_penalty=1.05, talker_repetition_penalty=1.2).sampling
    assert {role: sampling[role]["repetition_penalty"] for role in sampling} == {"default": 1.05, "talker": 1.2}


def test_keys_of_one_request() -> None:
    request = only({"prompt": "a", "stop": "END", "num_logprobs": 3, "logit_bias": {"7": -1.5}, "seed": 4})
    assert request.sampling["default"] == {"stop": ("END",), "num_logprobs": 3, "logit_bias": {7: -1.5}, "seed": 4}


@pytest.mark.parametrize(
    ("setting", "fault"),
    [
        ({"temperature": -1}, "sampling.temperature: got -1, expected a number >= 0"),
        ({"temperature": "hot"}, 'sampling.temperature: got "hot", expected a number'),
        ({"top_k": 1.5}, "sampling.top_k: got 1.5, expected an integer"),
        ({"talker_top_p": 0}, "sampling.talker_top_p: got 0, expected a number > 0"),
        ({"num_logprobs": 51}, "sampling.num_logprobs: got 51, expected an integer"),
        ({"max_generate_length": 0}, "sampling.max_generate_length: got 0"),
        ({"logit_bias": {"5": 101}}, "sampling.logit_bias.5: got 101.0, expected a number from -100 to 100"),
        ({"logit_bias": {"five": 1}}, "sampling.logit_bias.five"),
        ({"logit_bias": {str(i): 0 for i in range(1025)}}, "sampling.logit_bias: got"),
        ({"temprature": 1}, "did you mean 'temperature'?"),
        ({"talker": {"topk": 1}}, "sampling.talker.topk: got unknown key"),
        ({"talker": 3}, "sampling.talker: got 3, expected an object"),
    ],
)
def test_a_setting_that_is_wrong(setting: Any, fault: str) -> None:
    (found,) = faults({"prompt": "a", "sampling": setting})
    assert found.startswith("requests[0].")
    assert fault in found


# --- faults --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("request_", "fault"),
    [
        ({}, "requests[0].messages: got nothing, expected messages"),
        (5, "requests[0]: got 5, expected an object"),
        ({"messages": []}, "requests[0].messages: got 0 messages, expected 1 to 64"),
        ({"messages": [{"role": "user", "content": "a"}] * 65}, "requests[0].messages: got 65 messages"),
        ({"messages": "Hello"}, 'requests[0].messages: got "Hello", expected a list'),
        ({"messages": ["Hello"]}, 'requests[0].messages[0]: got "Hello", expected an object'),
        ({"messages": [{"role": "bot", "content": "a"}]}, "messages[0].role: got \"bot\", expected 'system'"),
        ({"messages": [{"role": "user"}]}, "requests[0].messages[0].content: got nothing"),
        ({"messages": [{"role": "user", "content": 3}]}, "requests[0].messages[0].content: got 3"),
        (user(*[TEXT] * 19), "requests[0].messages[0].content: got 19 parts, expected at most 18"),
        (user({"type": "txt", "text": "a"}), "messages[0].content[0].type: got \"txt\", expected 'text' or 'image'"),
        (user({"text": "a"}), "messages[0].content[0].type: got null, expected 'text'"),
        (user({"type": "text"}), "messages[0].content[0].text: got nothing, expected text"),
        (user(TEXT, {"type": "text", "txt": "a", "text": "b"}), "content[1].txt: got unknown key"),
        (user({"type": "text", "text": "é" * 65537}), "content[0].text: got 131074 bytes, expected at most 131072"),
        (user({"type": "image", "image": "no.png"}), "content[0].image: got 'no.png', expected a file that exists"),
        (user({"type": "image", "image": ""}), "content[0].image: got '', expected a file that exists"),
        (user({"type": "audio", "audio": "/"}), "content[0].audio: got '/', expected a file, not a folder"),
        (user({"type": "video", "frames": []}), "content[0].frames: got [], expected a list of one or more texts"),
        ({"prompt": ""}, "requests[0]: got an empty prompt"),
        ({"prompt": " \n"}, "requests[0]: got an empty prompt"),
        ({"system": "Be brief."}, "requests[0]: got an empty prompt"),
        ({"prompt": 3}, "requests[0].prompt: got 3, expected text"),
        ({"prompt": "a\udcff"}, "requests[0].prompt: got U+DCFF at character 1, expected valid Unicode"),
        (user({"type": "text", "text": "\ud83d"}), "messages[0].content[0].text: got U+D83D at character 0"),
        ({"prompt": "a", "instruct": "\udcff"}, "requests[0].instruct: got U+DCFF at character 0"),
        ({"prompt": "a", "messages": [{"role": "user", "content": "a"}]}, "got messages and prompt, expected"),
        ({"prompt": "a", "promt": "b"}, "requests[0].promt: got unknown key"),
        ({"prompt": "a", "lora_name": "x"}, "requests[0].lora_name: got \"x\", expected none: LoRA adapters are not"),
        ({"prompt": "a", "enable_thinking": 1}, "requests[0].enable_thinking: got 1, expected true or false"),
        ({"prompt": "a", "modalities": ["sound"]}, "modalities: got sound, expected only what the run writes: text"),
        ({"prompt": "a", "modalities": ["text", "audio"]}, "modalities: got audio, expected only what the run writes"),
        ({"prompt": "a", "prompt_speaker_codes": [[1], 2]}, "requests[0].prompt_speaker_codes: got [[1], 2]"),
    ],
)  # fmt: skip
def test_a_request_that_is_wrong(request_: Any, fault: str) -> None:
    (found,) = faults(request_)
    assert fault in found


def test_everything_wrong_with_a_request_is_told_at_once() -> None:
    request = {
        "messages": [{"role": "bot", "content": [{"type": "text"}]}, {"role": "user"}],
        "temprature": 1,
        "sampling": {"top_p": 2, "top_k": -1},
    }
    places = [fault.partition(": ")[0] for fault in faults(request)]
    assert sorted(places) == [
        "requests[0].messages[0].content[0].text",
        "requests[0].messages[0].role",
        "requests[0].messages[1].content",
        "requests[0].sampling.top_k",
        "requests[0].sampling.top_p",
        "requests[0].temprature",
    ]


def test_the_others_are_not_touched() -> None:
    file = load({"prompt": "a"}, {"prompt": ""}, {"prompt": "c"})
    assert [request.index for request in file.good] == [0, 2]
    assert [rejected.index for rejected in file.rejected] == [1]


@pytest.mark.parametrize(
    ("top", "fault"),
    [
        ({"temprature": 1}, "expected a known key (did you mean 'temperature'?)"),
        ({"batch_size": 0}, "batch_size: got 0, expected a whole number from 1 to 16"),
        ({"batch_size": 17}, "batch_size: got 17"),
        ({"temperature": "a"}, 'temperature: got "a", expected a number'),
        ({"streaming": {"enabel": True}}, "streaming.enabel: got unknown key"),
        ({"streaming": {"codec_chunk_frames": -1}}, "streaming.codec_chunk_frames: got -1"),
        ({"available_lora_weights": {"a": "b"}}, "available_lora_weights: got"),
        ({"diffusion_config": {"max_denoising_steps": 4}}, "expected none: text diffusion is not supported yet"),
        ({"context_cache_lookup_policy": "never"}, "expected 'use_cache' or 'bypass'"),
    ],
)  # fmt: skip
def test_a_fault_at_the_top_is_the_files(top: Any, fault: str) -> None:
    with pytest.raises(ConfigError) as raised:
        load({"prompt": "a"}, **top)
    assert fault in str(raised.value)


def test_every_key_of_the_original_is_accepted() -> None:
    llm = {
        "batch_size": 2, "temperature": 1.0, "top_p": 0.8, "top_k": 50, "max_generate_length": 256, "logit_bias": {},
        "num_logprobs": 0, "apply_chat_template": True, "add_generation_prompt": True, "enable_thinking": False,
        "context_cache_lookup_policy": "use_cache", "context_cache_commit_policy": "prefill_state_only",
        "available_lora_weights": {}, "diffusion_config": {}, "diffusion_max_denoising_steps": 0,
        "streaming": {"enable": True, "codec_chunk_frames": 10, "talker_prefill_threshold": 4},
        "talker_temperature": 0.9, "talker_top_k": 50, "talker_top_p": 1.0, "repetition_penalty": 1.05,
        "max_audio_length": 4096, "speaker": "ethan",
    }  # fmt: skip
    tts = {
        "subtalker_temperature": 0, "subtalker_top_k": 0, "subtalker_top_p": 0, "language": "", "instruct": "",
        "ref_audio": "", "ref_text": "",
    }  # fmt: skip
    one = {
        "prompt": "a", "save_system_prompt_kv_cache": False, "disable_spec_decode": True, "logit_bias": {"1": 2},
        "num_logprobs": 2, "stop": ["a", "b"], "speaker": "ryan", "language": "english", "instruct": "x",
        "ref_audio": "a.wav", "ref_text": "y", "prompt_speaker_codes": [[1] * 16], "assistant_instruct": "z",
        "talker_language": "english", "system_instruct": "w",
    }  # fmt: skip
    file = load(one, **llm, **tts)
    assert file.batch_size == 2
    assert not list(file.rejected)


def test_malformed_json_shows_the_place(tmp_path: Path) -> None:
    file = tmp_path / "requests.json"
    file.write_text('{"requests": [\n  {"prompt": "a" "b"}\n]}')
    with pytest.raises(ConfigError) as raised:
        load_requests(file)
    first, line, caret = str(raised.value).splitlines()
    assert first.startswith(f"{file}, line 2, column 18: got malformed JSON, expected ',' delimiter")
    assert line[caret.index("^")] == '"' and line[caret.index("^") :].startswith('"b"')


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"\xff{}", "byte 0xff at offset 0"), (b"", "line 1, column 1"), (b"[]", r"got \[\], expected an object")],
)
def test_a_file_that_is_no_object(content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "r.json").write_bytes(content)
    with pytest.raises(ConfigError, match=message):
        load_requests(tmp_path / "r.json")


# --- files on disk -------------------------------------------------------------------------------------------------


def test_a_key_twice_is_a_fault_of_its_request(tmp_path: Path) -> None:
    file = tmp_path / "requests.json"
    file.write_text('{"requests": [{"prompt": "a", "prompt": "b"}, {"prompt": "c"}], "temperature": 0.5}')
    bad, good = load_requests(file).entries
    assert isinstance(bad, Rejected)
    assert str(bad.error).startswith(f'{file}: requests[0]: got the key "prompt" twice')
    assert isinstance(good, Request) and good.sampling["default"] == {"temperature": 0.5}, "whatever stands after it"


@pytest.mark.parametrize("content", ['{"requests": []}', "", "\n \n"], ids=["json", "empty jsonl", "blank jsonl"])
def test_no_request_at_all_is_a_fault_of_the_file(content: str, tmp_path: Path) -> None:
    file = tmp_path / ("r.json" if content.startswith("{") else "r.jsonl")
    file.write_text(content)
    with pytest.raises(ConfigError, match="requests: got an empty list, expected at least one request"):
        load_requests(file)


def test_json_lines_are_a_request_a_line(tmp_path: Path) -> None:
    (tmp_path / "a.wav").touch()
    file = tmp_path / "requests.jsonl"
    file.write_bytes('{"prompt": "é"}\r\n\n{"prompt": "b", "audio": "a.wav", "top_k": 3}'.encode())
    loaded = load_requests(file, defaults=Defaults(sampling={"default": {"top_k": 1}}))
    first, second = loaded.good
    assert (loaded.batch_size, len(loaded.entries), second.index) == (None, 2, 1)
    assert first.fields["messages"][0]["content"][0]["text"] == "é"
    assert second.fields["audio"] == (f"{tmp_path}/a.wav",)
    assert [request.sampling["default"]["top_k"] for request in (first, second)] == [1, 3]


def test_a_broken_line_is_that_requests_error_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "requests.jsonl"
    lines = [
        b'{"prompt": "a"}',
        b"",
        b'{"prompt": "b"',
        b"[1]",
        b'{"prompt": "\xff"}',
        b'{"promt": "c"}',
        b'{"prompt": "d"}',
    ]
    file.write_bytes(b"\n".join(lines))
    loaded = load_requests(file)
    assert [request.index for request in loaded.good] == [0, 5]
    broken, array, bytes_, unknown = (str(rejected.error) for rejected in loaded.rejected)
    assert broken.startswith(f"{file}, line 3, column 15: got malformed JSON, expected ',' delimiter")
    assert array == f'{file}, line 4: request: got [1], expected an object ({{"prompt": "Hello"}})'
    assert bytes_ == f"{file}, line 5: got byte 0xff at offset 12, expected text in UTF-8"
    assert f"{file}, line 6: request.promt: got unknown key" in unknown


def test_entries_are_read_when_they_are_asked_for(tmp_path: Path) -> None:
    import tracemalloc

    file = tmp_path / "requests.json"
    file.write_text(json.dumps({"requests": [{"prompt": f"{index} " + "x" * 4000} for index in range(3000)]}))
    tracemalloc.start()
    loaded = load_requests(file)
    said = [entry.fields["messages"][0]["content"][0]["text"].split()[0] for entry in loaded.good]
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert said == [str(index) for index in range(3000)]
    assert peak < 2 << 20, "of a file of 12 MB"


def test_a_pipe_is_read_once_and_then_as_any_file() -> None:
    read, write = os.pipe()
    with os.fdopen(write, "w") as pipe:
        pipe.write('{"requests": [{"prompt": "a"}, {"prompt": "b"}]}')
    try:
        loaded = load_requests(Path(f"/dev/fd/{read}"))
    finally:
        os.close(read)
    assert len(list(loaded.good)) == len(list(loaded.good)) == 2


@pytest.mark.parametrize("name", ["requests.json", "requests.jsonl"])
def test_a_byte_order_mark_is_no_part_of_a_file(name: str, tmp_path: Path) -> None:
    text = '{"prompt": "a"}' if name.endswith("l") else '{"requests": [{"prompt": "a"}]}'
    (tmp_path / name).write_text(text, "utf-8-sig")
    (request,) = load_requests(tmp_path / name).good
    assert request.fields["messages"][0]["content"][0]["text"] == "a"


DIGITS = "9" * 6000


@pytest.mark.parametrize(
    ("request_text", "place", "message"),
    [
        ('{"prompt": "b", "seed": ' + DIGITS + "}", ".seed", "got an integer of 6,000 digits, expected at most 4,300"),
        ('{"prompt": "b", "sampling": {"top_p": NaN}}', ".sampling.top_p", "got NaN, expected a finite number"),
        ('{"prompt": "b", "sampling": {"top_p": 1e999}}', ".sampling.top_p", "got 1e999, expected a finite number"),
        ('{"prompt": "b", "prompt": "c"}', "", 'got the key "prompt" twice, expected each key of an object once'),
        ('{"prompt": "' + "b" * 200_000 + '"}', ".prompt", "got 200000 bytes, expected at most 131072"),
        ('{"system": "' + "b" * 200_000 + '", "prompt": "b"}', ".system", "got 200000 bytes, expected at most 131072"),
        ('{"video": ["gone.png"]}', ".video", "got 'gone.png', expected a file that exists"),
        ('{"prompt": "\\ud800"}', ".prompt", "got U+D800 at character 0, expected valid Unicode"),
    ],
)
@pytest.mark.parametrize("by_line", [True, False])
def test_a_fault_belongs_to_its_request_and_names_its_key(
    request_text: str, place: str, message: str, by_line: bool, tmp_path: Path
) -> None:
    texts = ['{"prompt": "a"}', request_text, '{"prompt": "c"}']
    file = tmp_path / ("r.jsonl" if by_line else "r.json")
    file.write_text("\n".join(texts) if by_line else '{"requests": [' + ",\n".join(texts) + "]}")
    loaded = load_requests(file)
    assert [entry.index for entry in loaded.good] == [0, 2]
    (bad,) = loaded.rejected
    where = f"{file}, line 2: request" if by_line else f"{file}: requests[1]"
    assert str(bad.error).startswith(f"{where}{place}: {message}")


@pytest.mark.parametrize("by_line", [True, False])
def test_a_raw_nul_belongs_to_its_request_and_is_shown_at_its_place(by_line: bool, tmp_path: Path) -> None:
    texts = ['{"prompt": "a"}', '{"prompt": "b\0c"}', '{"prompt": "c"}']
    file = tmp_path / ("r.jsonl" if by_line else "r.json")
    file.write_text("\n".join(texts) if by_line else '{"requests": [\n' + ",\n  ".join(texts) + "]}")
    loaded = load_requests(file)
    assert [entry.index for entry in loaded.good] == [0, 2]
    (bad,) = loaded.rejected
    place = "line 2, column 14" if by_line else "line 3, column 16"
    told, line, _ = str(bad.error).splitlines()
    said = r"got malformed JSON, expected \u0000 for the control character U+0000 in a string"
    assert told == f"{file}, {place}: {said}"
    assert line.strip() == '{"prompt": "b\N{SYMBOL FOR NULL}c"}'
