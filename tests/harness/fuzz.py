"""Fuzzing: damage files at random; each must load, or be refused with one InputError.

    python tests/harness/fuzz.py --inputs 100000
    python tests/harness/fuzz.py --inputs 5000 --reader modules --seed 1
    python tests/harness/fuzz.py --again modules.json-17

A reader of readers.py reads a folder of valid files. An input is that folder with one file changed: bytes are
flipped, removed, repeated or inserted; or a value of JSON or of a safetensors header is replaced by an
unexpected one; compressed files are changed inside or outside of the compression. Readers run in a process of
their own, with limits of time and memory, so that a crash or a hang is detected. An input that is neither
loaded nor refused is a defect, and its name is printed. Panics of a library are counted even if the input was
refused in the end. Input n of a seed is always the same, so --again shows the traceback of a name.
"""

import argparse
import faulthandler
import gzip
import json
import lzma
import multiprocessing
import os
import resource
import shutil
import struct
import sys
import tempfile
import traceback
import zipfile
from collections import Counter
from copy import deepcopy
from io import BytesIO
from pathlib import Path
from random import Random

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path[:0] = [str(ROOT), str(HERE.parent), str(HERE)]

from readers import READERS, Reader, prepare_process  # noqa: E402

from tmft.errors import InputError  # noqa: E402

TIMEOUT, MEMORY = 10, 4 << 30  # seconds per input; bytes of address space beyond those at the start
FINE = LOADED, REFUSED, PANIC = "loaded", "refused", "panics"
DEFECT, FATAL = "defects", ("hang", "crash")  # after a fatal defect a new process is started
DEEP_LIST = "[" * 3000 + "]" * 3000
STRANGE = [0, 1, -1, 2, 3, 7, 255, 2**31, 2**32 - 1, 2**63, 2**64, 10**30, 0.5, -0.5, 1e300, float("nan")]
STRANGE += [float("inf"), None, True, False, "", "a", "..", "../../x", "/etc", "[X]", "\0", "é한\u2028"]
STRANGE += ["x" * 100_000, [], [[]], [None], {}, {"a": 1}, [1, 2, 3], ["a", "b"], [["a", 0.0]]]


# ----------------------------------------------------------------------------------------- changes of a file


def change_bytes(data: bytes, random: Random) -> bytes:
    """Flip, cut, repeat, insert or remove bytes, one to four times."""
    data = bytearray(data)
    for _ in range(random.choice([1, 1, 2, 4])):
        at = random.randrange(len(data) + 1)
        to = min(len(data), at + random.choice([1, 2, 8, 64, 1024]))
        kind = random.randrange(7)
        if kind == 0 and data:
            data[at % len(data)] ^= 1 << random.randrange(8)
        elif kind == 1:
            del data[at:]
        elif kind == 2:
            data[at:at] = data[at:to]
        elif kind == 3:
            data[at:at] = random.choice([b"\0", b"\t", b"\n", b'"', b",", b"\xff", b"-1", b"1e999", b"nan"])
        elif kind == 4:
            data[at:at] = random.choice([b"9" * 5000, b"a" * 200_000, b"\r", b"\xc2\x85", b" ", b"[" * 3000])
        elif kind == 5:
            del data[at:to]
        elif data:
            data[at % len(data)] = random.randrange(256)
    return bytes(data)


def change_json(data: bytes, random: Random) -> bytes:
    """Change one to three values, keys or elements, at random positions of random depth."""
    content = [json.loads(data)]  # in a list, so that the top level can be replaced, too
    for _ in range(random.choice([1, 1, 2, 3])):
        parent, key = content, 0
        while isinstance(parent[key], dict | list) and parent[key] and random.random() < 0.8:
            parent = parent[key]
            key = random.choice(list(parent)) if isinstance(parent, dict) else random.randrange(len(parent))
        kind, value = random.randrange(8), parent[key]
        if kind == 0 and parent is not content:
            del parent[key]
        elif kind == 1 and isinstance(parent, dict):
            parent[str(random.choice(STRANGE))[:50]] = parent.pop(key)
        elif kind == 2 and isinstance(parent, list) and parent is not content:
            parent[key:key] = [deepcopy(value) for _ in range(random.choice([1, 1, 300]))]
        elif kind == 3 and isinstance(value, str) and value:
            at = random.randrange(len(value))
            parent[key] = value[:at] + random.choice(["", "é", "\n", "x", value]) + value[at + 1 :]
        elif kind == 4 and isinstance(value, int | float):
            parent[key] = value * random.choice([-1, 2, 10, 1000, 0]) + random.choice([-1, 0, 1, 0.5])
        elif kind == 5 and isinstance(parent, dict):
            parent[key] = deepcopy(parent[random.choice(list(parent))])  # that of another key
        else:
            parent[key] = deepcopy(random.choice(STRANGE))
    text = json.dumps(content[0], indent=random.choice([None, 1]))
    return (text if random.random() < 0.98 else text.replace("[]", DEEP_LIST, 1)).encode()


def change_header(data: bytes, random: Random) -> bytes:
    """Change the header of a safetensors file: its JSON, or the length of the JSON in the first 8 bytes."""
    (size,) = struct.unpack("<Q", data[:8])
    header, tensors = data[8 : 8 + size], data[8 + size :]
    if random.random() < 0.1:
        size = random.choice([0, size - 1, size + 1, 2**31, 2**63, 2**64 - 1])
    else:
        header = change_json(header, random)
        size = len(header)
    return (
        struct.pack("<Q", size)
        + header
        + (tensors if random.random() < 0.9 else change_bytes(tensors, random))
    )


def change_zip(data: bytes, random: Random) -> bytes:
    """Change the contents and the names of the members of a zip file."""
    changed = BytesIO()
    with zipfile.ZipFile(BytesIO(data)) as old, zipfile.ZipFile(changed, "w") as new:
        for name in old.namelist():
            content = old.read(name)
            if random.random() < 0.5:
                content = change_bytes(content, random)
            if random.random() < 0.1:
                strange = ["../../x.txt", "/x.txt", "x" * 5000 + ".txt", "a/b/c.txt", "\n.txt", ".txt"]
                name = random.choice([name for name in strange if name not in new.namelist()] or ["y" + name])
            new.writestr(name, content)
    return changed.getvalue()


BY_SUFFIX = {
    ".json": change_json,
    ".safetensors": change_header,
    ".gz": lambda data, random: gzip.compress(change_bytes(gzip.decompress(data), random), 1),
    ".xz": lambda data, random: lzma.compress(change_bytes(lzma.decompress(data), random), preset=0),
    ".zip": change_zip,
    ".pt": change_zip,
    ".bin": lambda data, random: (change_zip if data[:2] == b"PK" else change_bytes)(data, random),
}


def change(files: dict[str, bytes], reader: Reader, random: Random) -> tuple[str, bytes]:
    """Choose a file of a reader's folder and change it: return its name and the new content."""
    name = random.choice([name for name in files if reader.may_change(name)])
    change_content = BY_SUFFIX.get(Path(name).suffix, change_bytes)
    try:
        return name, (change_content if random.random() < 0.7 else change_bytes)(files[name], random)
    except UnicodeEncodeError:  # half a character cannot be written
        return name, b""


# ------------------------------------------------------------------------------------------- running readers


def work(reader: Reader, folder: Path, name: str, seed: int, first: int, last: int, connection) -> None:
    """Read the inputs first to last - 1, in a process of its own; send (number, outcome, description) of
    each.
    """
    prepare_process()
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    faulthandler.disable()  # that of pytest: a crash is counted, not printed
    stderr = folder.parent / "stderr"
    for descriptor, path in ((1, os.devnull), (2, stderr)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), descriptor)
    files = contents(folder)
    for number in range(first, last):
        changed, content = change(files, reader, Random(f"{seed} {name} {number}"))
        (folder / changed).write_bytes(content)
        os.truncate(stderr, 0)
        outcome, description = read_outcome(reader, folder)
        if outcome == REFUSED and "panicked" in stderr.read_text(errors="replace"):
            outcome = PANIC
        connection.send((number, outcome, description))
        reset(folder, files)


def read_outcome(reader: Reader, folder: Path) -> tuple[str, str]:
    """Read a folder: return LOADED, REFUSED, or the name of an exception; and its message and lines in
    tmft/.
    """
    try:
        reader.read(folder)
    except InputError as error:
        return REFUSED, str(error)
    except BaseException as error:
        frames = traceback.extract_tb(error.__traceback__)
        lines = [f"{Path(at.filename).name}:{at.lineno}" for at in frames if f"{ROOT}/tmft" in at.filename]
        message = " ".join(str(error).split())[:120]
        return type(error).__name__, f"{message} ({' '.join(lines[-2:])})"
    return LOADED, ""


def contents(folder: Path) -> dict[str, bytes]:
    """Return the content of every file below a folder, by relative path."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def reset(folder: Path, files: dict[str, bytes]) -> None:
    """Give a folder these files, and no others."""
    now = contents(folder)
    for name in now.keys() - files.keys():
        (folder / name).unlink()
    for name, content in files.items():
        if now.get(name) != content:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(content)


def make_folder(reader: Reader, folder: Path) -> None:
    """Create a folder with the valid files of a reader."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    reader.make(folder)


def fuzz(reader: Reader, name: str, count: int, seed: int) -> tuple[Counter, list[str]]:
    """Read so many inputs: return the count of each outcome, and a line for each defect."""
    outcomes, defects, number = Counter(), [], 0
    with tempfile.TemporaryDirectory(prefix="fuzz-", ignore_cleanup_errors=True) as scratch:
        folder = Path(scratch) / "files"
        while number < count:
            make_folder(reader, folder)
            receiver, sender = multiprocessing.Pipe(duplex=False)
            arguments = (reader, folder, name, seed, number, count, sender)
            worker = multiprocessing.get_context("fork").Process(target=work, args=arguments)
            worker.start()
            sender.close()
            outcome = ""
            while number < count and outcome not in FATAL:
                try:
                    has_answer = receiver.poll(TIMEOUT)
                    answer = receiver.recv() if has_answer else (number, "hang", f"of {TIMEOUT} s ()")
                except EOFError:
                    worker.join()
                    answer = number, "crash", f"with exit code {worker.exitcode} ()"
                number, outcome, description = answer
                outcomes[outcome if outcome in FINE else DEFECT] += 1
                if outcome not in FINE:
                    defects.append(f"{name}-{number}: {outcome} {description}")
                number += 1
            worker.kill()
            worker.join()
            receiver.close()
    return outcomes, defects


def read_again(name: str, seed: int) -> None:
    """Read one input in this process, so that an error has its traceback. name: such as modules.json-17."""
    prepare_process()
    reader_name, _, number = name.rpartition("-")
    reader = READERS[reader_name]
    with tempfile.TemporaryDirectory(prefix="fuzz-") as scratch:
        folder = Path(scratch) / "files"
        make_folder(reader, folder)
        changed, content = change(contents(folder), reader, Random(f"{seed} {reader_name} {number}"))
        (folder / changed).write_bytes(content)
        reader.read(folder)


def main(argv: list[str] | None = None) -> int:
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--inputs", type=int, default=2000, help="number of inputs of all readers together")
    p.add_argument("--seed", type=int, default=0, help="seed of the inputs")
    p.add_argument("--reader", default="", help="use only readers whose name begins with this")
    p.add_argument("--again", metavar="NAME", help="read an input once more, and show the traceback")
    options = p.parse_args(argv)
    if options.again:
        read_again(options.again, options.seed)
        return 0
    names = [name for name in READERS if name.startswith(options.reader)]
    total = Counter()
    print(format_line("reader", ["inputs", *FINE, DEFECT]))
    for name in names:
        outcomes, defects = fuzz(READERS[name], name, -(-options.inputs // len(names)), options.seed)
        print(format_line(name, [outcomes.total(), *(outcomes[key] for key in (*FINE, DEFECT))]))
        print("".join(f"  {line}\n" for line in defects), end="", flush=True)
        total += outcomes
    print(format_line("all", [total.total(), *(total[key] for key in (*FINE, DEFECT))]))
    return int(total[DEFECT] > 0)


def format_line(name: str, cells: list) -> str:
    """Return a line of the table."""
    return f"{name:<26}" + "".join(f" {cell:>8}" for cell in cells)


if __name__ == "__main__":
    os.environ |= {"TOKENIZERS_PARALLELISM": "false"}
    sys.exit(main())
