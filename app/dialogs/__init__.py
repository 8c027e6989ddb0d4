"""Dialogs. Only the file choosers are modal."""
