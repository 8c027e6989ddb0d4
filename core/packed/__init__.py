"""Weights that lie packed in a checkpoint, scheme by scheme: found, checked, and read as if they were plain."""
