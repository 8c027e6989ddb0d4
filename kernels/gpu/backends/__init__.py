"""Registers all of it with `kernels.dispatch`: arrays of numpy in and out. Imports everywhere."""
