"""`multistage-merge`: the predictions files of all shards of a run into the one that a whole run would have written."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import NoReturn

from framework.cli import app
from framework.cli.status import status_or_interrupted


def main() -> NoReturn:
    app.leave(lambda: status_or_interrupted(_command))


def _command() -> int:
    parser = argparse.ArgumentParser(prog="multistage-merge", description="join the predictions files of all shards")
    parser.add_argument("out", type=Path, help="the file to write: a regular file or a free name, or a symlink to one")
    parser.add_argument("shards", type=Path, nargs="+", help="the file of every shard (shard.index, shard.count)")
    try:
        args = parser.parse_args()
    except SystemExit as end:  # help, or arguments that are wrong
        return int(end.code or 0)
    return _merge(args.shards, args.out)


def _merge(shards: list[Path], out: Path) -> int:
    from framework.deployment.building import say
    from framework.io.responses import merge_predictions

    failed = merge_predictions(shards, out, say)
    print(f"{failed or 'no'} request{'s' * (failed > 1)} failed: {out}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    main()
