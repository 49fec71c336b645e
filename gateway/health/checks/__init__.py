"""The checks that show what a backend really does: the request of each check, and the grading of its reply. Pure."""

from __future__ import annotations

from gateway.health.checks.catalog import ALL, CHECKS, NO_ANSWER, Check, judge, skipped
from gateway.health.checks.profile import Profile, profile_of
from gateway.health.checks.reply import CheckReply

__all__ = ["ALL", "CHECKS", "NO_ANSWER", "Check", "CheckReply", "Profile", "judge", "profile_of", "skipped"]
