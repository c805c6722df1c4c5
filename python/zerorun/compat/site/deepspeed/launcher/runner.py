"""The command `deepspeed`: zerorun's launcher with the compatibility active."""

import os
import shutil
import sys

DEEPSPEED_ENVIRONMENT_NAME = os.getenv("DS_ENV_FILE", ".deepspeed_env")


def main(args: list[str] | None = None) -> None:
    """Becomes `zerorun --deepspeed_compat ARGUMENTS`."""
    command = shutil.which("zerorun")
    if command is None:
        sys.exit("deepspeed (zerorun): the command zerorun is not in PATH")
    os.execv(command, [command, "--deepspeed_compat", *(sys.argv[1:] if args is None else args)])


if __name__ == "__main__":
    main()
