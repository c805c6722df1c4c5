"""python -m zerorun.metrics: prints docs/metrics.md."""

import sys

from zerorun.metrics.fields import markdown

sys.stdout.write(markdown())
