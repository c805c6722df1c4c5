"""A headless browser that opens a page."""

import os
import shutil
from pathlib import Path

from ranks import passed, ran

BROWSER = shutil.which(os.environ.get("ZERORUN_BROWSER", "chromium"))
OPTIONS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr")


def browse(tmp_path: Path, address: str, width: int, *options: str) -> str:
    """What it makes of the page; it has met no error."""
    own = ("--virtual-time-budget=5000", f"--window-size={width},2000", "--dump-dom")
    profile = f"--user-data-dir={tmp_path / 'profile'}"
    job = passed(ran([str(BROWSER), *OPTIONS, *own, profile, *options, address], timeout=120))
    assert "CONSOLE" not in job.stderr, job.stderr
    return job.stdout
