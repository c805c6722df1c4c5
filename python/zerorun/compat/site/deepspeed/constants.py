"""What an environment variable changes."""

import os
from datetime import timedelta

# Of a process group's collectives, in minutes; as patient as torch is with Gloo.
default_pg_timeout = timedelta(minutes=int(os.getenv("DEEPSPEED_TIMEOUT", "30")))
