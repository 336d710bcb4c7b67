"""Making engines: a checkpoint is read, its networks are built, and the graph of the result is written."""
