"""Request files, predictions and media."""
