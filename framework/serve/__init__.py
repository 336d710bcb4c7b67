"""A server in front of deployments: OpenAI's API over HTTP, a page, and what an operator needs."""
