"""Flags that no known version of vLLM has."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.launch.flags import flag_names, one_typo_away, vllm_flags
from tests.launch.test_arguments import read


def test_an_unknown_flag_names_the_version_that_is_known() -> None:
    (mistake,) = read("x --no-such-thing-at-all").mistakes
    assert vllm_flags().version in mistake.message


@given(st.sampled_from(flag_names()), st.data())
def test_one_typo_leads_back_to_the_flag(name: str, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(name) - 1))
    letter = data.draw(st.sampled_from("qxz"))
    typo = data.draw(st.sampled_from([name[:at] + letter + name[at:], name[:at] + letter + name[at + 1 :]]))
    assert one_typo_away(typo, [name]) == (name if typo != name else None)
