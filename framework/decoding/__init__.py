"""The loop of all runners that write one token, or one frame, after another."""
