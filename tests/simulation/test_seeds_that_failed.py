"""Seeds that once showed a defect.

What a seed draws changes with the simulator, so each has a test of its own elsewhere, or was too rare to have one.
"""

from __future__ import annotations

import pytest
from tests.simulator.simulation import simulate


@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(920714, id="a flip upon state that was given up"),
        pytest.param(921991, id="a flip upon state that was given up, in a later move"),
        pytest.param(61000629, id="rows that waited fail, and the state that was read is thrown away"),
        pytest.param(63008694, id="a worker that did not come up, and was left out, owes state for ever"),
        pytest.param(63009952, id="whoever waited for state that is given up begins with its old owners"),
        pytest.param(63017316, id="a move to a worker that came while the state was given up"),
        pytest.param(63019953, id="state comes before the code that takes it in"),
        pytest.param(65000424, id="word of an earlier order to read state back counts for the last one"),
        pytest.param(65010848, id="opens that a restart held up wait for ever when it is called off"),
        pytest.param(65001444, id="a worker that was lost and came again for a change that failed stays"),
        pytest.param(65007067, id="a query that begins again is taken for one that has ended"),
        pytest.param(61009909, id="a change that failed waits for state that cannot be read back"),
        pytest.param(67002913, id="a key on its way arrives without state when all is set back"),
        pytest.param(86039496, id="an old owner speaks of a key that lives elsewhere than its group"),
        pytest.param(83014003, id="a key group of which one key is read back comes whole, by a later order"),
        pytest.param(80016138, id="who sealed without rows while it read its state in vain counts as having it"),
        pytest.param(74029383, id="files that a newer attachment has deleted are taken for damage"),
        pytest.param(91063138, id="state that could not be read has an owner that never tried, and reads wait for it"),
        pytest.param(91079141, id="one worker cannot read its state, and another is not told to"),
        pytest.param(161003316, id="a pinned key is not known any more when the move of its group to it is called off"),
        pytest.param(161004547, id="single keys of a move that is called off are known before and not after it"),
        pytest.param(953001156, id="copies come to a worker whose key groups passed on before there was state"),
        pytest.param(71021678, id="a move that failed waits for a sealed epoch that nobody decides"),
    ],
)
def test_it_passes_now(seed: int) -> None:
    simulate(seed, moves=True)
