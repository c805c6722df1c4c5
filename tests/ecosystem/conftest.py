"""Finds the helpers of tests/python."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "python"))
