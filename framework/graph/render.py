"""A graph for the eye: a Mermaid diagram, and the rows of a table."""

from __future__ import annotations

from framework.graph.model import Graph

HEADINGS = ("id", "runner", "kind", "artifact", "inputs", "ports", "max_batch", "max_seq")


def mermaid(graph: Graph) -> str:
    """A Mermaid flowchart of a sound graph: request, stages, terminal outputs; inputs that may lack are dotted."""
    # Nodes are numbered, since an id such as `end` is a word of Mermaid's own.
    nodes = {"request": "request", **{stage.id: f"s{index}" for index, stage in enumerate(graph.stages)}}
    lines = ["graph LR", "    request([request])"]
    lines += [f"    {nodes[stage.id]}[{_text(stage.id)}]" for stage in graph.stages]
    edges: dict[tuple[str, str, bool], list[str]] = {}
    for stage in graph.stages:
        for item in stage.inputs:
            edge = (nodes[item.source.owner], nodes[stage.id], item.on_missing == "skip")
            edges.setdefault(edge, []).append(item.source.name)
    for (source, target, optional), names in edges.items():
        label = _text(", ".join(dict.fromkeys(names)))
        lines.append(f"    {source} {f'-. {label} .->' if optional else f'-- {label} -->'} {target}")
    for index, terminal in enumerate(graph.terminals):
        lines.append(f"    {nodes[terminal.owner]} -- {_text(terminal.name)} --> o{index}([{_text(str(terminal))}])")
    return "\n".join(lines) + "\n"


def table(graph: Graph) -> list[tuple[str, ...]]:
    """One row of strings a stage, under `HEADINGS`. Inputs and ports stand one a line within their cell."""
    return [
        (
            stage.id,
            stage.runner,
            stage.kind,
            stage.artifact or "-",
            "\n".join(f"{item.name} <- {item.source} ({item.on_missing})" for item in stage.inputs) or "-",
            "\n".join(f"{port.id}: {port.kind}{' (terminal)' if port.terminal else ''}" for port in stage.emits) or "-",
            str(stage.max_batch),
            str(stage.max_seq or "-"),
        )
        for stage in graph.stages
    ]


def _text(label: str) -> str:
    return f'"{label.replace(chr(34), "#quot;")}"'
