"""A server in a process of its own: `python -m tests.serve.process PAUSE`. It writes its address on standard output and
ends with status 3 where its engines were not closed."""

from __future__ import annotations

import sys

from framework.serve.server import listen, serve
from framework.serve.settings import Keys, Limits
from tests.serve.deployments import ASSISTANT, Fake

if __name__ == "__main__":
    deployment = Fake(ASSISTANT, pause=float(sys.argv[1]))
    with listen("127.0.0.1", 0) as sock:
        status = serve(
            {"assistant": deployment},
            sock=sock,
            keys=Keys(()),
            limits=Limits(),
            grace_s=float(sys.argv[2]),
            said=lambda address: print(address, flush=True),
        )
    sys.exit(status if deployment.closed == deployment.opened else 3)
