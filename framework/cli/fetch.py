"""`multistage-fetch`: a preset's weights into the cache; prints the file's path."""

from __future__ import annotations

from typing import Any, NoReturn

from framework.cli import app, building
from framework.cli.config import FetchConfig
from framework.schema import structure


def task(values: dict[str, Any], run: app.Run) -> int:
    config = structure(FetchConfig, values, where="")
    print(building.fetch_weights(config.deployment, config.paths))
    return 0


def main() -> NoReturn:
    app.main("fetch", task)


if __name__ == "__main__":
    main()
