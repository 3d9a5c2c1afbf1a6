#!/usr/bin/env python3
"""Runs commands and draws their output as a terminal, for the README.

    scripts/terminal_svg.py --out docs/images/terminal.svg 'djinn run' 'djinn plan --memory 8MB'

Long lines are wrapped; output of more than --lines lines is shortened in the middle. Needs Python, and
djinn on the PATH.
"""

import argparse
import html
import subprocess
import textwrap

COLUMNS = 108
LINE = 18


def output(command, lines):
    done = subprocess.run(["bash", "-c", f"{command} 2>&1"], check=True, capture_output=True, text=True)
    wrapped = []
    for line in done.stdout.rstrip("\n").split("\n"):
        wrapped += textwrap.wrap(line, COLUMNS, drop_whitespace=False, replace_whitespace=False) or [""]
    if len(wrapped) > lines:
        half = lines // 2
        wrapped = wrapped[:half] + ["…"] + wrapped[-(lines - half):]
    return wrapped


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True)
    parser.add_argument("--lines", type=int, default=24)
    parser.add_argument("commands", nargs="+")
    args = parser.parse_args()

    rows = []
    for command in args.commands:
        rows += [("#7ee787", f"$ {command}")]
        rows += [("#e6edf3", line) for line in output(command, args.lines)]
        rows += [("#e6edf3", "")]
    height = 52 + LINE * len(rows)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 920 {height}" '
        'font-family="ui-monospace, SFMono-Regular, Menlo, Consolas, monospace" font-size="13.5">',
        f'<rect width="920" height="{height}" rx="10" fill="#0d1117"/>',
    ]
    for x, colour in [(22, "#ff5f57"), (40, "#febc2e"), (58, "#28c840")]:
        parts.append(f'<circle cx="{x}" cy="20" r="6" fill="{colour}"/>')
    for i, (colour, text) in enumerate(rows):
        y = 52 + LINE * i
        parts.append(f'<text x="18" y="{y}" fill="{colour}" xml:space="preserve">{html.escape(text)}</text>')
    parts.append("</svg>")
    with open(args.out, "w", encoding="utf-8") as file:
        file.write("\n".join(parts) + "\n")


if __name__ == "__main__":
    main()
