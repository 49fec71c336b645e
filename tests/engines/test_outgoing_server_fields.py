"""Fields by which one client would change what a server does for the others stay behind."""

from __future__ import annotations

import pytest

from gateway.engines.outgoing import CHOSEN_IDS, OF_THE_SERVER
from tests.engines.test_outgoing import ASK, backend_state, sent


@pytest.mark.parametrize("name", OF_THE_SERVER)
@pytest.mark.parametrize("engine", ["vllm", "ollama", "openai"])
def test_no_client_says_what_a_server_does_for_all(name: str, engine: str) -> None:
    state = backend_state(engine=engine)
    up, adapted = sent({**ASK, name: 1, "seed": 1}, state=state)
    assert (up, adapted) == ({**ASK, "model": "served/model", "seed": 1}, ["server_fields_stripped"])
    up, adapted = sent({**ASK, name: None}, state=state)
    assert (name in up, adapted) == (False, [])
    for own in ({}, {name: 1}):
        assert sent({**ASK, **own}, state=state, params={name: 7})[0][name] == 7


@pytest.mark.parametrize("name", CHOSEN_IDS)
def test_no_client_chooses_its_requests_id_in_the_body(name: str) -> None:
    assert sent({**ASK, name: "mine"}) == ({**ASK, "model": "served/model"}, [])
