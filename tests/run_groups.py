#!/usr/bin/env python3
"""Run pytest in groups, each within its own time, and close with one line over all of them.

    python tests/run_groups.py NAME:SECONDS:PATTERN ...

PATTERN matches file names in tests/; a file belongs to the first group that matches, and one that none matches is an error,
so no test is left out silently. A group that takes too long is stopped and counts as one failure. One group runs per core, those
that may take longest first, each with single-threaded linear algebra; what a group printed is shown when it has ended.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import xml.etree.ElementTree as ElementTree
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatch
from pathlib import Path

TESTS = Path(__file__).resolve().parent
NO_TESTS = 5  # pytest's exit status
PRINTING = threading.Lock()


def split(arguments: list[str]) -> list[tuple[str, float, list[Path]]]:
    """(name, seconds, files) of every group; exits with a message for a malformed one or a file without a group."""
    left = sorted(TESTS.glob("test_*.py"))
    groups = []
    for argument in arguments:
        try:
            name, seconds, pattern = argument.split(":")
            budget = float(seconds)
        except ValueError:
            sys.exit(f"group {argument!r}: NAME:SECONDS:PATTERN is needed")
        files = [f for f in left if fnmatch(f.name, pattern)]
        left = [f for f in left if f not in files]
        if files:
            groups.append((name, budget, files))
    if left or not groups:
        sys.exit(f"no group for {', '.join(f.name for f in left) or 'any test'}: add a pattern")
    return groups


def run(name: str, budget: float, files: list[Path]) -> dict[str, int]:
    """Numbers of tests by outcome."""
    begin = time.monotonic()
    with tempfile.TemporaryFile("w+") as output:
        counts = run_pytest(name, budget, files, output)
        output.seek(0)
        text = output.read()
    with PRINTING:
        print(f"== {name}\n{text}== {name}: {time.monotonic() - begin:.0f} s of {budget:.0f}", flush=True)
    return counts


def run_pytest(name: str, budget: float, files: list[Path], output) -> dict[str, int]:
    pytest = Path(sys.executable).with_name("pytest")
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [pytest, "-q", "-p", "no:cacheprovider", f"--rootdir={TESTS.parent}", f"--junitxml={report}", *files]
        # From tests/, where neither pytest nor a test's `python -m edgepos` finds the checkout instead of the installed package.
        process = subprocess.Popen([str(part) for part in command], cwd=TESTS, start_new_session=True, stdout=output, stderr=output, env=environment)
        try:
            status = process.wait(budget)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            print(f"group {name}: stopped after its {budget:.0f} seconds", file=output, flush=True)
            return {"failed": 1}
        if not report.exists():
            print(f"group {name}: pytest ended with status {status} and no report", file=output, flush=True)
            return {"failed": 1}
        suites = ElementTree.parse(report).getroot().iter("testsuite")
        counts = {"passed": 0, "failed": 0, "skipped": 0, "errors": 0}
        for suite in suites:
            failed, skipped, errors = (int(suite.get(key, 0)) for key in ("failures", "skipped", "errors"))
            counts["passed"] += int(suite.get("tests", 0)) - failed - skipped - errors
            counts["failed"] += failed
            counts["skipped"] += skipped
            counts["errors"] += errors
    if status not in (0, NO_TESTS) and not counts["failed"] + counts["errors"]:
        counts["errors"] += 1
    return counts


def main() -> int:
    start = time.monotonic()
    total: dict[str, int] = {}
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        groups = sorted(split(sys.argv[1:]), key=lambda group: -group[1])
        for counts in pool.map(lambda group: run(*group), groups):
            for outcome, n in counts.items():
                total[outcome] = total.get(outcome, 0) + n
    shown = [f"{total[key]} {key}" for key in ("failed", "passed", "skipped", "errors") if total.get(key)]
    line = f" {', '.join(shown) or 'no tests ran'} in {time.monotonic() - start:.2f}s "
    strict = os.environ.get("CI") == "true" and bool(total.get("skipped"))
    if strict:
        print("where CI=true a skipped test counts as a failure")
    print(line.center(80, "="))
    return 0 if total.get("passed") and not strict and not total.get("failed") and not total.get("errors") else 1


if __name__ == "__main__":
    sys.exit(main())
