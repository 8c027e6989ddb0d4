"""Files that run: weights into an engine, text into tokens and back, and how fast that went."""
