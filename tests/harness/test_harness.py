"""The harnesses in a short form, so that they cannot rot; docs/reliability.md tells of the long ones."""

import subprocess
import sys

import pytest
from conftest import ROOT


@pytest.mark.slow
def test_a_few_kills_lose_nothing():
    line = [sys.executable, ROOT / "tests/harness/kill.py", "--kills", "6", "--only", "fine-tuning", "encode"]
    found = subprocess.run(line, capture_output=True, text=True, timeout=300)
    assert found.returncode == 0 and "6 kills" in found.stdout, found.stdout + found.stderr
