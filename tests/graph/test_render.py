from __future__ import annotations

from framework.graph import Graph, loads
from framework.graph.render import HEADINGS, mermaid, table


def test_mermaid_of_the_seeds_example(omni: Graph) -> None:
    assert mermaid(omni).splitlines() == [
        "graph LR",
        "    request([request])",
        '    s0["thinker"]',
        '    s1["talker"]',
        '    s2["code2wav"]',
        '    request -- "messages" --> s0',
        '    request -. "audio" .-> s0',
        '    s0 -- "accept_hidden, text" --> s1',
        '    request -. "voice" .-> s1',
        '    s1 -- "codes" --> s2',
        '    s0 -- "text" --> o0(["thinker:text"])',
        '    s2 -- "audio" --> o1(["code2wav:audio"])',
    ]


def test_mermaid_keeps_an_awkward_id_in_quotes() -> None:
    graph = loads('{"stages": [{"id": "end \\"of\\" graph", "runner": "r"}]}')
    assert '    s0["end #quot;of#quot; graph"]' in mermaid(graph).splitlines()


def test_table_has_a_row_a_stage(tts: Graph) -> None:
    assert [dict(zip(HEADINGS, row, strict=True)) for row in table(tts)] == [
        {
            "id": "talker",
            "runner": "qwen3_omni.talker",
            "kind": "autoregressive",
            "artifact": "talker",
            "inputs": "text <- request:messages (fail)\nvoice <- request:voice (skip)",
            "ports": "codes: codec",
            "max_batch": "4",
            "max_seq": "-",
        },
        {
            "id": "code2wav",
            "runner": "qwen3_omni.code2wav",
            "kind": "iterative",
            "artifact": "code2wav",
            "inputs": "codes <- talker:codes (fail)",
            "ports": "audio: audio (terminal)",
            "max_batch": "1",
            "max_seq": "-",
        },
    ]
