"""The window."""

from app.immortal import keep_singletons

keep_singletons()
