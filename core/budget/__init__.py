"""Mixed precision by budget: what each weight costs in quality in each format, measured, and the best use of bytes."""
