"""What files of tests share: `from prelude import *` brings these names and those of ranks.py."""

import contextlib
import importlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import threading
import time
import zipfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
from ranks import *

# The types of pytest's fixtures, and of a command that has ended.
Capture, Patch = pytest.CaptureFixture[str], pytest.MonkeyPatch
Folders, Log = pytest.TempPathFactory, pytest.LogCaptureFixture
Ended = subprocess.CompletedProcess[str]


def each(names: str, *rows: Any, **options: Any) -> pytest.MarkDecorator:
    """A test for each row of values, whose names the words are."""
    words = names.split()
    return pytest.mark.parametrize(words if len(words) > 1 else names, rows, **options)


def raises(kind: Any, text: str, call: Callable[..., object], /, *args: Any, **kwargs: Any) -> None:
    """An error of that kind, which has the text."""
    with pytest.raises(kind, match=re.escape(text)):
        call(*args, **kwargs)
