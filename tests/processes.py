"""Run a program in processes that are forked from one process that has imported torch.

To start a process that imports torch takes seconds, and torchrun is one more of them; a fork takes none.
"""

import multiprocessing
import os
import runpy
import socket
import sys
import tempfile
import time
from multiprocessing.connection import wait
from pathlib import Path
from subprocess import CompletedProcess
from unittest.mock import patch

ROOT = Path(__file__).resolve().parent.parent
OF_FORK_SERVER = {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
FORK_SERVER = multiprocessing.get_context("forkserver")
FORK_SERVER.set_forkserver_preload(
    ["train", "tmft.io.distributed", "tmft.runs.train_run", "tmft.runs.pretrain"]
)


def run_together(
    count: int, *arguments, command="train.py", timeout=120, folders: list | None = None
) -> CompletedProcess:
    """Run a command as torchrun does: in `count` processes of one thread each that know of each other.

    folders: of one process on each of several nodes; without them all are on one node.
    """
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        port = server.getsockname()[1]
    same = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    same |= {"WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": "1" if folders else str(count)}
    environments = [
        os.environ | same | {"RANK": str(rank), "LOCAL_RANK": "0" if folders else str(rank)}
        for rank in range(count)
    ]
    return run_forked([ROOT / command, *arguments], environments, timeout, folders)


def run_forked(
    words: list, environments: list[dict[str, str]], timeout=120, folders: list | None = None
) -> CompletedProcess:
    """Run a program in a process for each environment; if one fails, all are ended.

    words: the file of the program and its arguments. folders: the working folder of each process. Returns
    the exit status of the first process that failed, 0 if none did, and what they printed, one after
    the other.
    """
    words, count, end = [str(word) for word in words], len(environments), time.monotonic() + timeout
    with tempfile.TemporaryDirectory() as folder:
        running, returncode = {}, 0
        for number, environment in enumerate(environments):
            where = str(folders[number]) if folders else os.getcwd()
            arguments = (words, environment, where, folder, number)
            process = FORK_SERVER.Process(target=run_program, args=arguments)
            with patch.dict(os.environ, OF_FORK_SERVER):  # which the first process starts
                process.start()
            running[process.sentinel] = process
        while running and not returncode and time.monotonic() < end:
            for sentinel in wait(running, timeout=end - time.monotonic()):
                process = running.pop(sentinel)
                process.join()
                returncode = returncode or process.exitcode
        for process in running.values():
            process.terminate()
            process.join()
            returncode = returncode or process.exitcode
        printed = {
            stream: "".join(Path(folder, f"{stream}{n}").read_text(encoding="utf-8") for n in range(count))
            for stream in ("stdout", "stderr")
        }
    return CompletedProcess(words, returncode, **printed)


def run_program(words: list[str], environment: dict[str, str], cwd: str, folder: str, number: int) -> None:
    """Run a program in this process; what it prints goes into files in a folder."""
    for descriptor, stream in ((1, "stdout"), (2, "stderr")):
        file = os.open(f"{folder}/{stream}{number}", os.O_WRONLY | os.O_CREAT)
        os.dup2(file, descriptor)
        os.close(file)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = words
    runpy.run_path(words[0], run_name="__main__")
