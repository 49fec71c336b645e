"""The checks that show what a backend really does: how each asks, and what an answer to it means. Pure."""

from __future__ import annotations

from gateway.health.checks.reply import Reply
from gateway.health.checks.subject import Subject, subject_of
from gateway.health.checks.table import ALL, CHECKS, NO_ANSWER, Check, judge, skipped

__all__ = ["ALL", "CHECKS", "NO_ANSWER", "Check", "Reply", "Subject", "judge", "skipped", "subject_of"]
