"""Background work of the window."""

from app.jobs.runner import Job, JobRunner, JobState

__all__ = ["Job", "JobRunner", "JobState"]
