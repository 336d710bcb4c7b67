"""`multistage-fetch`: a preset's weights into the cache; prints their paths."""

from __future__ import annotations

from typing import Any, NoReturn

from framework.cli import app
from framework.deployment import building
from framework.deployment.config import FetchConfig
from framework.schema import structure


def task(values: dict[str, Any], run: app.Run) -> int:
    config = structure(FetchConfig, values, where="")
    for path in building.fetch_all(config.deployment, config.paths):
        print(path)
    return 0


def main() -> NoReturn:
    app.main("fetch", task)


if __name__ == "__main__":
    main()
