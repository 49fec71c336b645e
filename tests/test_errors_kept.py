"""An error that is kept is raised as a copy of it."""

from __future__ import annotations

import traceback

import pytest

from gateway.domain.upstream import OwnFailure, ResetFailure
from gateway.errors import GatewayError, fresh


def raised(error: BaseException) -> BaseException:
    with pytest.raises(type(error)) as found:
        raise fresh(error)
    return found.value


def test_the_copy_says_what_the_kept_one_says() -> None:
    kept = GatewayError("memory_full", "no room", retry_after=3)
    copy = raised(kept)
    assert isinstance(copy, GatewayError)
    assert (str(copy), copy.code, copy.status, copy.headers()) == ("no room", "memory_full", 503, kept.headers())


def test_an_error_with_arguments_of_its_own_is_copied() -> None:
    copy = raised(OwnFailure("files", unsent=True))
    assert isinstance(copy, OwnFailure)
    assert (copy.shortage, copy.unsent) == ("files", True)


def test_the_kept_one_leads_to_no_frame_however_often_it_is_raised() -> None:
    kept = ResetFailure("gone")
    for _ in range(2):
        assert len(traceback.extract_tb(raised(kept).__traceback__)) == 1
    assert kept.__traceback__ is None


def test_the_cause_is_kept() -> None:
    kept = ResetFailure("gone")
    kept.__cause__ = OSError("reset")
    assert raised(kept).__cause__ is kept.__cause__
