"""Runs a whole model: memory and streams of a device, weights on it, the program's steps, captured graphs."""
