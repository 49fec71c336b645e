"""Operations on the fleet: a switch of the mode, a start or a stop of one backend, step by step."""
