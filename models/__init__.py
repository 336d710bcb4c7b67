"""Model families, and what they share: see README.md."""
