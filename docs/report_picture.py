"""Take the picture of a report, `docs/images/report.png`: `python docs/report_picture.py [BROWSER]`.

The report is that of `bayesify demo`. A headless browser takes the picture: Chromium or Chrome, from the path or as the argument
(Debian: `apt-get install chromium`). Fonts are those of the machine.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

PICTURE = Path(__file__).parent / "images" / "report.png"
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome", "msedge")
WIDTH, HEIGHT = 1040, 1480  # down to the first row of figures


def find_browser(name: str | None) -> str:
    """Return the path of the browser of that name, by default of the first of `BROWSERS` that is installed."""
    found = [path for path in map(shutil.which, BROWSERS if name is None else (name,)) if path is not None]
    if not found:
        raise SystemExit(f"no browser: {name or ', '.join(BROWSERS)} is not installed; install Chromium, or name a browser")
    return found[0]


def take_picture(browser: str, page: Path, picture: Path) -> None:
    """Write the upper part of a page as a PNG file."""
    with tempfile.TemporaryDirectory() as profile:
        options = ["--headless", "--disable-gpu", "--hide-scrollbars", "--disable-background-networking", "--no-first-run"]
        options += [f"--user-data-dir={profile}", f"--window-size={WIDTH},{HEIGHT}", f"--screenshot={picture}"]
        if hasattr(os, "geteuid") and os.geteuid() == 0:
            options.append("--no-sandbox")  # which root cannot have
        subprocess.run([browser, *options, page.resolve().as_uri()], check=True, capture_output=True)
    if not picture.is_file():
        raise SystemExit(f"{browser} has written no picture")


def main() -> None:
    """Run the demo and replace the picture."""
    browser = find_browser(sys.argv[1] if len(sys.argv) > 1 else None)
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, "-c", "from bayesify.cli import main; main()", "demo", "--out", folder], check=True)
        picture = Path(folder, "report.png")
        take_picture(browser, Path(folder, "report.html"), picture)
        shutil.move(picture, PICTURE)


if __name__ == "__main__":
    main()
