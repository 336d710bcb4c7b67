"""The typed graph of a deployment: its file, its rules, and the stages one request needs."""

from __future__ import annotations

from framework.graph.files import dumps, load, loads, overlay, save
from framework.graph.model import FILE_NAME, Graph, Input, InputDecl, Port, RunnerDecl, Source, Stage
from framework.graph.routes import Route, consumers, route, topological, unread_fields
from framework.graph.validate import check, load_checked, validate

__all__ = [
    "FILE_NAME",
    "Graph",
    "Input",
    "InputDecl",
    "Port",
    "Route",
    "RunnerDecl",
    "Source",
    "Stage",
    "check",
    "consumers",
    "dumps",
    "load",
    "load_checked",
    "loads",
    "overlay",
    "route",
    "save",
    "topological",
    "unread_fields",
    "validate",
]
