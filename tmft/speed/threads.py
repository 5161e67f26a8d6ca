"""The number of threads that fits the machine: threads of one product wait for each other.

If a machine has fewer free cores than there are threads, each product waits for the slowest thread: layer 4
of the first run, on two cores with a load of 8, took 103 to 164 s with two threads and 26 s with one. A quota
of a container is known and stays, so torch gets no more threads than it allows. Load comes and goes, and the
number of threads changes the last bits of a result, so there the choice is the user's (OMP_NUM_THREADS=1).
"""

import logging
import math
import os
from pathlib import Path

import torch

log: logging.Logger = logging.getLogger("tmft")

CGROUP = Path("/sys/fs/cgroup")
# Files with the quota and the period of a control group, both in microseconds: version 2, then version 1.
QUOTA_FILES = (("cpu.max",), ("cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us"))
OWN_SETTINGS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")  # with which the user chooses the number of threads


has_used_threads = False  # whether this process has loaded or run a model with several threads


def prepare_for_fork() -> None:
    """Let processes that are forked from now on compute with one thread, unless torch has only one anyway.

    A forked process inherits torch's pool of threads, but not the threads, and would wait for them for ever.
    """
    global has_used_threads
    if not has_used_threads and torch.get_num_threads() > 1 and hasattr(os, "register_at_fork"):
        has_used_threads = True
        os.register_at_fork(after_in_child=use_one_thread)


def use_one_thread() -> None:
    """Give torch a single thread in a forked process, and say so."""
    torch.set_num_threads(1)
    log.warning(
        "this process was forked from one in which torch had several threads, which do not exist here: it "
        "computes with one; start processes by spawn or forkserver, or load no model before the fork"
    )


def limit_threads() -> None:
    """Give torch at most as many threads as the CPU quota of the container allows, at least one.

    Without a quota, or with OMP_NUM_THREADS or MKL_NUM_THREADS in the environment, nothing is changed.
    """
    quota = cpu_quota(CGROUP)
    if quota and not any(name in os.environ for name in OWN_SETTINGS):
        threads = max(1, math.floor(quota))
        if threads < torch.get_num_threads():
            torch.set_num_threads(threads)


def cpu_quota(folder: Path) -> float | None:
    """Return how many cores a control group may use at a time; None if it is not limited or not known."""
    for names in QUOTA_FILES:
        try:
            words = [word for name in names for word in (folder / name).read_text("ascii").split()]
            quota, period = (float(word) for word in words)
        except (OSError, ValueError):  # no such file, as on macOS, or "max"
            continue
        if quota > 0 and period > 0:
            return quota / period
    return None
