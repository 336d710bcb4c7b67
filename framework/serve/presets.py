"""A deployment of the settings, as the server uses it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from framework.deployment.config import InferenceConfig
from framework.deployment.requested import defaults_of
from framework.deployment.system import Deployed, faults_of, make_executor
from framework.errors import Problem
from framework.execution.executor import Executor
from framework.execution.request import Request
from framework.graph.model import Graph


class Preset:
    """See `framework.serve.served.Deployment`. As many requests run together as the widest stage takes, where
    `batching.size` does not say."""

    def __init__(self, config: InferenceConfig, system: Deployed) -> None:
        self.defaults = defaults_of(config)
        self._config = config
        self._system = system
        self._faults = faults_of(system)

    @property
    def graph(self) -> Graph:
        return self._system.graph

    def problems(self, request: Request) -> list[Problem]:
        return self._faults(request)

    def choices(self) -> Mapping[str, Sequence[str]]:
        return dict(self._system.choices)

    def executor(self) -> Executor:
        rows = max(stage.max_batch for stage in self.graph.stages)
        return make_executor(self._config, self._system, rows)
