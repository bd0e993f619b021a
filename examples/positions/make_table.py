#!/usr/bin/env python3
"""Write the numbers of results.json where they are read: the tables of docs/choosing.md and edgepos/positions/measured.json.

    python examples/positions/make_table.py           # write both
    python examples/positions/make_table.py --check   # exit 1 if one of them differs
"""

import argparse
import json
import re
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
GUIDE, MEASURED = ROOT / "docs" / "choosing.md", ROOT / "edgepos" / "positions" / "measured.json"
ABSENT = "–"


def markdown(head, rows):
    """A table; every column but the first is set to the right."""
    lines = [head, ["---"] + ["---:"] * (len(head) - 1), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def figure(value):
    """mean ± spread, or what stands for no value."""
    return ABSENT if value is None else f"{value['mean']:.3f} ± {value['spread']:.3f}"


def loss_table(results):
    """Loss of each encoding at each length, then the ways to stretch."""
    rows = []
    for name, facts in ranked(results):
        rows.append([name, *(figure(facts["loss"][f"{factor}x"]) for factor in (1, 2, 4))])
        kinds = sorted({key.split(" ", 1)[1] for key in facts["loss"] if " " in key})
        rows += [[f"{name}, {kind}", "", *(figure(facts["loss"][f"{factor}x {kind}"]) for factor in (2, 4))] for kind in kinds]
    length = results["size"]["context"]
    return markdown(["encoding", *(f"{f}× ({f * length} tokens)" for f in (1, 2, 4))], rows)


def integer_table(results):
    """What integer positions change at the trained length: the largest of the seeds."""
    rows = []
    for name, facts in ranked(results):
        sixteen, eight = facts["integer"]["16"], facts["integer"]["8"]
        rows.append([name, *(f"{x:.1e}" if x else "0" for x in (sixteen["kl"], eight["kl"], sixteen["loss_change"], eight["loss_change"]))])
    return markdown(["encoding", "KL, int16", "KL, int8", "loss change, int16", "loss change, int8"], rows)


def cost_table(results):
    """Bytes and operations."""
    rows = []
    for name, facts in ranked(results):
        counts = [facts["operations"][f"{factor}x"] for factor in (1, 4)]
        share = f"{100 * counts[0] / (2 * results['multiplications']):.1f} %"
        rows.append([name, *(str(facts[key]) for key in ("runtime_bytes", "int16_bytes", "int8_bytes")), *map(str, counts), share])
    length = results["size"]["context"]
    head = ["encoding", "EdgePos keeps", "int16 table", "int8 table", f"operations at {length} keys", f"at {4 * length}", "share of the model's"]
    return markdown(head, rows)


def ranked(results):
    """Encodings by loss at the trained length, best first."""
    return sorted(results["encodings"].items(), key=lambda item: item[1]["loss"]["1x"]["mean"])


TABLES = {"loss": loss_table, "integer": integer_table, "cost": cost_table}


def guide(results, text):
    """The text of docs/choosing.md with its tables between <!-- NAME --> and <!-- end --> made anew."""
    for name, make in TABLES.items():
        block = f"<!-- {name} -->\n{make(results)}\n<!-- end -->"
        text, count = re.subn(rf"<!-- {name} -->\n.*?<!-- end -->", lambda _: block, text, flags=re.S)
        if count != 1:
            sys.exit(f"{GUIDE.name}: {count} places for the table '{name}'; one <!-- {name} --> … <!-- end --> is needed")
    return text


def measured(results):
    """What `edgepos positions advise` reads: the figures without the runs."""
    kept = ("loss", "integer")
    encodings = {name: {key: facts[key] for key in kept} for name, facts in results["encodings"].items()}
    return json.dumps({"size": results["size"], "encodings": encodings}, indent=1) + "\n"


def main():
    parser = argparse.ArgumentParser(description="Write the measured tables.")
    parser.add_argument("--check", action="store_true", help="only compare")
    args = parser.parse_args()
    results = json.loads((HERE / "results.json").read_text(encoding="utf-8"))
    wanted = {GUIDE: guide(results, GUIDE.read_text(encoding="utf-8")), MEASURED: measured(results)}
    for path, text in wanted.items():
        if not args.check:
            path.write_text(text, encoding="utf-8")
        elif not path.is_file() or path.read_text(encoding="utf-8") != text:
            sys.exit(f"{path.name} differs from results.json; run python examples/positions/make_table.py")


if __name__ == "__main__":
    main()
