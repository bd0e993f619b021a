"""The report's pages in headless Chromium: no console errors, nothing too wide, tables that sort, light and dark."""

from __future__ import annotations

import html
import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from matplotlib.image import imread

import edgepos
from edgepos.export import load
from edgepos.report.build import measure
from edgepos.report.comparison import comparison_page, ranked, row_of
from edgepos.report.page import page
from edgepos.report.windows import read_text
from edgepos.resources import tiny_model_dir

FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking --disable-component-update --disable-sync "
    "--hide-scrollbars --enable-logging=stderr --v=0"
).split()
WIDTHS = (390, 1200)
# Runs behind the page's own script: sorts the first table twice, then says what the page looks like.
PROBE = """<script>
const table = document.querySelector("table.sortable"), buttons = [...table.tHead.querySelectorAll("button")];
const column = buttons.findIndex((b) => b.closest("th").classList.contains("n"));
const values = () => [...table.tBodies[0].rows].map((r) => r.cells[column].textContent);
const seen = {width: innerWidth, page: document.documentElement.scrollWidth, svgs: document.querySelectorAll("svg").length,
  buttons: document.querySelectorAll("th button").length, heads: document.querySelectorAll("table.sortable th").length,
  sections: [...document.querySelectorAll("main section")].map((s) => s.id),
  labelled: [...document.querySelectorAll("section")].every((s) => s.getAttribute("aria-label") || document.getElementById(s.getAttribute("aria-labelledby"))),
  small: [...document.querySelectorAll("svg")].filter((s) => s.getBoundingClientRect().width > 0 && s.getBoundingClientRect().width < 280).length};
document.querySelector(".skip").focus();
seen.focus = document.activeElement.className;
buttons[column].click(); seen.down = values(); seen.sort = buttons[column].closest("th").getAttribute("aria-sort");
buttons[column].click(); seen.up = values();
parent.postMessage(JSON.stringify(seen), "*");
</script></body>"""
# Chromium's own window is never narrower than 500 pixels, a frame is.
FRAME = """<!doctype html><body><script>
addEventListener("message", (e) => { const pre = document.createElement("pre"); pre.textContent = "PROBE" + e.data + "END"; document.body.append(pre); });
</script><iframe src="probe.html" width="WIDTH" height="900" style="border:0"></iframe></body>"""


@pytest.fixture(scope="module")
def chromium():
    found = shutil.which("chromium")
    if found is None:
        reason = "chromium is not installed (Debian's package chromium)"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    return found


@pytest.fixture(scope="module")
def pages(bundle, tmp_path_factory):
    """Name → file of the pages; the measured one is of an ALiBi model, whose charts have a line per head."""
    source = load(tiny_model_dir("tiny-alibi"))
    made = bundle("tiny-alibi")
    report = measure(made, edgepos.reference(source), source, read_text(), max_tokens=200, command=["edgepos", "report"])
    row = row_of("a", report)
    rows = ranked([row, {**row, "label": "b", "bytes": row["bytes"] * 2, "error": row["error"] / 3}, {**row, "label": "c", "bytes": row["bytes"] * 3}])
    texts = {"measured": page(report), "fresh": page(made.report), "compare": comparison_page(rows, "three", [{"label": "d", "error": "refused"}])}
    folder = tmp_path_factory.mktemp("pages")
    for name, text in texts.items():
        (folder / f"{name}.html").write_text(text, "utf-8")
    return {name: folder / f"{name}.html" for name in texts}


def browse(chromium: str, file: Path, folder: Path, *flags: str) -> str:
    """What Chromium prints; no line of it may come from the console."""
    command = [chromium, *FLAGS, f"--user-data-dir={folder / 'profile'}", *flags, file.as_uri()]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=300)
    assert "CONSOLE" not in done.stderr, done.stderr
    return done.stdout


def probed(chromium: str, file: Path, folder: Path, width: int) -> dict:
    (folder / "probe.html").write_text(file.read_text("utf-8").replace("</body>", PROBE), "utf-8")
    frame = folder / "frame.html"
    frame.write_text(FRAME.replace("WIDTH", str(width)), "utf-8")
    printed = browse(chromium, frame, folder, "--window-size=1400,1000", "--virtual-time-budget=4000", "--dump-dom")
    return json.loads(html.unescape(re.search("<pre>PROBE(.*)END", printed).group(1)))


def test_the_console_is_read(chromium, tmp_path):
    """A page that goes wrong must be seen to."""
    (tmp_path / "bad.html").write_text("<script>missing()</script>")
    with pytest.raises(AssertionError, match="missing is not defined"):
        browse(chromium, tmp_path / "bad.html", tmp_path, "--dump-dom")


@pytest.mark.parametrize("name", ["measured", "fresh", "compare"])
@pytest.mark.parametrize("width", WIDTHS)
def test_pages_fit_and_sort(chromium, pages, name, width, tmp_path):
    seen = probed(chromium, pages[name], tmp_path, width)
    assert seen["page"] <= seen["width"] == width and seen["labelled"] and seen["focus"] == "skip" and seen["small"] == 0
    assert seen["buttons"] == seen["heads"] > 4 and seen["sort"] == "descending"
    assert sorted(seen["down"]) == sorted(seen["up"]) and seen["down"] == seen["up"][::-1] or len(set(seen["down"])) < len(seen["down"])
    expected = ["chart", "table", "failed"] if name == "compare" else ["summary", "positions", "layers", "attention", "text", "again"]
    assert seen["sections"] == expected
    assert seen["svgs"] >= {"measured": 8, "fresh": 0, "compare": 1}[name]


@pytest.mark.parametrize("dark", [False, True])
def test_light_and_dark(chromium, pages, dark, tmp_path):
    shot = tmp_path / "shot.png"
    scheme = ["--blink-settings=preferredColorScheme=0"] if dark else []
    browse(chromium, pages["measured"], tmp_path, *scheme, "--window-size=1200,900", f"--screenshot={shot}")
    pixels = imread(shot)[..., :3].mean(axis=2)
    background, text = pixels[:, 2].mean(), pixels.min() if not dark else pixels.max()
    assert (background < 0.2 and text > 0.8) if dark else (background > 0.9 and text < 0.2)
