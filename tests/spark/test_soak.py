"""A short part of the soak (``make soak``) with a fixed seed: a start with faults, and one to the end."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.simulator.chance import Chance
from tests.soak.rounds import EPOCHS_AFTER, Round

pytestmark = pytest.mark.spark


def test_a_round_of_random_faults_ends_as_one_without(tmp_path: Path) -> None:
    told: list[str] = []
    found = Round(tmp_path, Chance(3), told.append).run(starts=1)
    assert min(found.values()) >= EPOCHS_AFTER, told
    assert any("kill" in line or "stop" in line for line in told), "a round without a fault proves nothing"
