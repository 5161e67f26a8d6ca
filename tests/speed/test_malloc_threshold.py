"""After a large block was freed once, glibc reuses the pages of freed results."""

import platform
import subprocess
import sys

import pytest
from conftest import ROOT

PROGRAM = """
import resource, torch
from tmft.speed.matmul import raise_malloc_threshold

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(50):
        torch.empty(2**22).fill_(1.0)  # 16 MiB
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

print(faults(), raise_malloc_threshold(), faults())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="it is about glibc")
def test_freed_pages_are_reused_after_the_threshold_was_raised():
    run = [sys.executable, "-c", PROGRAM]
    before, _, after = subprocess.run(
        run, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True
    ).stdout.split()
    assert 10 * int(after) < int(before)
