"""`make bench`: speed and memory beside llama.cpp and transformers, measured in turn in one run."""
