"""From a checkpoint to engine folders and the graph that joins them."""
