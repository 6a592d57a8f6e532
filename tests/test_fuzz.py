"""Readers of foreign bytes answer, or raise an error of one line."""

import random

import fuzz
import pytest

CHANGES = 60  # of each target; `make fuzz` has more time


@pytest.mark.parametrize("name", fuzz.TARGETS)
def test_seeds_and_changes_of_them_leave_no_fault(name):
    draw = random.Random(name)
    with fuzz.harness(name) as (use, seeds):
        assert len(seeds) > 0
        for seed in seeds[:20]:
            use(seed)
        for _ in range(CHANGES):
            use(fuzz.changed(draw.choice(seeds), draw))
