"""`multistage-serve`: a deployment over HTTP."""

from __future__ import annotations

from typing import Any, NoReturn

from framework.cli import app
from framework.deployment import building
from framework.deployment.instances import PREFIXES
from framework.deployment.system import check, deployed
from framework.errors import ConfigError, Problem
from framework.schema import structure


def task(values: dict[str, Any], run: app.Run, prefixes: tuple[str, ...] = PREFIXES) -> int:
    """Exit status of one server."""
    try:
        from framework.serve.presets import Preset
        from framework.serve.server import listen, serve
        from framework.serve.settings import ServeConfig, read_keys
    except ModuleNotFoundError as error:
        got, hint = f"no package {error.name}", "pip install 'multistage[serve]'"
        raise ConfigError(
            Problem(where="multistage-serve", got=got, expected="the extra 'serve'", hint=hint)
        ) from error
    config = structure(ServeConfig, values, where="")
    keys = read_keys(config.api_key_file)
    with listen(config.host, config.port) as sock:
        system = deployed(config.run, prefixes)
        check(config.run, system, run.choices)
        chosen = run.choices.get("deployment", "none")
        name = config.name or (system.folder.name if chosen == "none" else chosen)
        return serve(
            {name: Preset(config.run, system)},
            sock=sock,
            keys=keys,
            limits=config.limits,
            grace_s=config.grace_s,
            log_requests=config.log_requests,
            said=lambda address: building.say(f"{name}: {address}/"),
        )


def main() -> NoReturn:
    app.main("serve", task)


if __name__ == "__main__":
    main()
