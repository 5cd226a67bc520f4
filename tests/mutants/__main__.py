"""``make mutants``: small changes to the code, each of which a test has to notice.

Draws changes from a seed, makes each in a copy of the project, and runs the tests that enter the
changed function. Prints a table by folder and each change that lived; exit code 1 if one did.
`tests/mutants/equivalent.toml` lists those that no test has to notice, with the reason.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.mutants.child import TOTAL_S, Result
from tests.mutants.draw import FOLDERS, all_sites, draw, read_listed
from tests.mutants.report import ALIVE, Line, read_lines, table

ROOT = Path(__file__).parents[2]
LEFT_OUT = (".git", ".venv", "build", "dist", "run", "__pycache__", ".*_cache", ".hypothesis")


def main() -> int:
    """Draw, try, report; the exit code."""
    options = parse_options()
    folders = tuple(options.only or FOLDERS)
    sites = all_sites(ROOT)
    chosen = [site for site in sites if site.path.startswith(folders)]
    drawn = draw(chosen, options.count, options.seed)
    listed = {entry.name for entry in read_listed()}
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        place = Path(folder)
        results = options.resume.resolve() if options.resume else place / "results.jsonl"
        done = read_lines(results)
        if options.again:
            done = {name: line for name, line in done.items() if line.outcome not in ALIVE}
        open_sites = [site for site in drawn if site.name not in done and site.name not in listed]
        print(f"seed {options.seed}, commit {commit()}: {len(drawn)} changes of {len(chosen)}")
        print(f"{len(open_sites)} to try", flush=True)
        if open_sites:
            run([site.name for site in open_sites], place, results, options.seconds)
        lines = read_lines(results)
        skipped = [
            Line.of(site, Result("listed", "", 0, 0.0)) for site in drawn if site.name in listed
        ]
        lines |= {line.name: line for line in skipped}
        tried = [lines[site.name] for site in drawn if site.name in lines]
    print(table(tried))
    return 1 if len(tried) < len(drawn) or any(line.outcome in ALIVE for line in tried) else 0


def parse_options() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="make mutants", description=__doc__)
    parser.add_argument("--seed", type=int, default=17)
    parser.add_argument("--count", type=int, default=500, help="changes to try")
    parser.add_argument(
        "--only", action="append", metavar="PATH", help="draw from this folder or file (repeatable)"
    )
    parser.add_argument(
        "--resume", type=Path, metavar="FILE", help="keep results there, and go on with them"
    )
    parser.add_argument(
        "--seconds", type=float, default=TOTAL_S, help="for the tests of one change"
    )
    parser.add_argument(
        "--again", action="store_true", help="with --resume: try those that lived once more"
    )
    return parser.parse_args()


def run(names: list[str], place: Path, results: Path, total_s: float) -> None:
    """Try the sites of these names in a copy of the project."""
    copy = place / "copy"
    shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(*LEFT_OUT), symlinks=True)
    plan = place / "plan.json"
    reach = results.with_name(results.name + ".reach")
    content = {
        "names": names,
        "results": str(results),
        "reach": str(reach),
        "total_s": total_s,
    }
    plan.write_text(json.dumps(content))
    subprocess.run(
        [sys.executable, "-m", "tests.mutants.session", str(plan)],
        cwd=copy,
        env=os.environ | {"PYTHONPATH": str(copy)},
        check=False,
    )


def commit() -> str:
    """Return the commit of the project, and whether files differ from it."""
    command = ["git", "describe", "--always", "--dirty"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
