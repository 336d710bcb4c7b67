"""One request through several engines: graphs, runners, engines, networks and commands. Knows no model."""
