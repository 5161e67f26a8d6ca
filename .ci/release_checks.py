"""What .ci/release asks of the files: `version`, `content SOURCE DIST`, `bom FILE`, `notes VERSION`.

Standard library only, because it runs before anything is installed.
"""

import ast
import json
import re
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MAX_BYTES = 20_000_000  # of the wheel, and of the sdist
COMMAND_FILES = ("train.py", "evaluate.py", "cka.py")  # all of the root that ships


def version(root: Path = ROOT) -> str:
    """Return `__version__` of tmft/__init__.py, the one place where the version stands."""
    tree = ast.parse((root / "tmft/__init__.py").read_text(encoding="utf-8"))
    [value] = [
        node.value.value
        for node in tree.body
        if isinstance(node, ast.Assign) and node.targets[0].id == "__version__"
    ]
    return value


def wheel_files(root: Path) -> set[str]:
    """Return the names that the wheel of a source tree must have, without those of its .dist-info folder.

    They are all modules of the packages in pyproject.toml, and the files that its package-data names.
    """
    setuptools = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]
    names = set()
    for package in setuptools["packages"]:
        folder = root / setuptools["package-dir"].get(package, package.replace(".", "/"))
        patterns = ["*.py", *setuptools["package-data"].get(package, [])]
        files = {file for pattern in patterns for file in folder.glob(pattern) if file.is_file()}
        names |= {f"{package.replace('.', '/')}/{file.relative_to(folder).as_posix()}" for file in files}
    return names


def check_content(root: Path, dist: Path) -> str:
    """Compare a wheel and an sdist with the source tree; return one line, and exit with 1 if they differ."""
    [wheel], [sdist] = dist.glob("*.whl"), dist.glob("*.tar.gz")
    info = f"tmft-{version(root)}"
    if not (wheel.name.startswith(f"{info}-py3-none-any") and sdist.name == f"{info}.tar.gz"):
        sys.exit(f"{wheel.name}, {sdist.name}: expected version {version(root)} for every platform")
    with zipfile.ZipFile(wheel) as archive:
        in_wheel = {name for name in archive.namelist() if not name.startswith(f"{info}.dist-info/")}
    with tarfile.open(sdist) as archive:
        in_sdist = {name.partition("/")[2] for name in archive.getnames()}
    expected = wheel_files(root)
    problems = [f"the wheel lacks {name}" for name in sorted(expected - in_wheel)]
    problems += [f"the wheel has {name}, which is not part of it" for name in sorted(in_wheel - expected)]
    sources = {"pyproject.toml", "README.md", "LICENSE", *COMMAND_FILES}
    sources |= {
        name for name in expected if name.partition("/")[2].partition("/")[0] not in ("commands", "shipped")
    }
    commands = {name for name in in_wheel if name.startswith("tmft/commands/")}
    if commands != {f"tmft/commands/{name}" for name in COMMAND_FILES}:
        problems.append(f"the wheel has the commands {', '.join(sorted(commands))}: expected {COMMAND_FILES}")
    problems += [f"the sdist lacks {name}" for name in sorted(sources - in_sdist)]
    for file in (wheel, sdist):
        if file.stat().st_size > MAX_BYTES:
            problems.append(f"{file.name} has {file.stat().st_size:,} bytes, more than {MAX_BYTES:,}")
    if problems:
        sys.exit("\n".join(problems))
    sizes = " and ".join(f"{file.name} {file.stat().st_size / 1e6:.1f} MB" for file in (wheel, sdist))
    return f"{sizes}: {len(in_wheel)} files in the wheel, as listed"


def complete_bom(file: Path, root: Path = ROOT) -> str:
    """Write the version of tmft into a bill of materials; return one line; exit with 1 if it is incomplete.

    Its program reads the name in pyproject.toml, where the version does not stand.
    """
    bom = json.loads(file.read_text(encoding="utf-8"))
    main = bom["metadata"]["component"]
    components = {component["name"].lower().replace("_", "-") for component in bom["components"]}
    requirements = (root / "requirements.txt").read_text(encoding="utf-8").splitlines()
    missing = {re.match(r"[\w-]+", line)[0] for line in requirements} - components
    if bom["bomFormat"] != "CycloneDX" or main["name"] != "tmft" or missing:
        sys.exit(f"{file}: {bom['bomFormat']} of {main['name']}, which lacks {', '.join(sorted(missing))}")
    main["version"] = version(root)
    file.write_text(json.dumps(bom, indent=1) + "\n", encoding="utf-8")
    return f"{file}: CycloneDX {bom['specVersion']} of tmft {main['version']}, {len(components)} components"


def notes(name: str, root: Path = ROOT) -> str:
    """Return the part of CHANGELOG.md below the heading of a version, or exit with 1 if there is none."""
    sections = (root / "CHANGELOG.md").read_text(encoding="utf-8").split("\n## ")[1:]
    found = [section for section in sections if section.split()[0] == name]
    if not found:
        sys.exit(f"CHANGELOG.md has no section {name}")
    return found[0].partition("\n")[2].strip()


if __name__ == "__main__":
    command, *words = sys.argv[1:]
    if command == "version":
        print(version())
    elif command == "content":
        print(check_content(*map(Path, words)))
    elif command == "bom":
        print(complete_bom(*map(Path, words)))
    elif command == "notes":
        print(notes(*words))
    else:
        sys.exit(f"{command}: version, content, bom or notes")
