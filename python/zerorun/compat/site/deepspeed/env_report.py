"""The report of the environment, which is the command `zerorun env`."""

import subprocess
import sys


def main(*_args: object, **_options: object) -> None:
    sys.exit(subprocess.run([sys.executable, "-m", "zerorun", "env"], check=False).returncode)


cli_main = main

if __name__ == "__main__":
    main()
