"""Hosts for a whole file of tests; skipped where a machine cannot have them."""

from host_namespaces import why_not
from prelude import *

from .two_hosts import Hosts, Network, name_of


@pytest.fixture
def network(tmp_path: Path) -> Iterator[Network]:
    """Two hosts without sshd, for launchers that a test starts on each, and that it may change."""
    if problem := why_not():
        pytest.skip(problem)
    with Network(tmp_path) as found:
        yield found


@pytest.fixture(scope="session")
def hosts(tmp_path_factory: Folders) -> Iterator[Hosts]:
    missing = [name for name in ("ssh", "ssh-keygen", "/usr/sbin/sshd") if not shutil.which(name)]
    if problem := f"{missing} are not installed" if missing else why_not():
        pytest.skip(problem)
    with Hosts(tmp_path_factory.mktemp("hosts")) as found:
        yield found


@pytest.fixture(autouse=True)
def end_what_a_test_leaves(request: pytest.FixtureRequest) -> Iterator[None]:
    """A test that failed may leave a job behind, which the next one would take for its own."""
    own = "network" if "network" in request.fixturenames else "hosts"
    hosts: Network = request.getfixturevalue(own)

    def running() -> set[int]:
        return {pid for host in range(2) for pid in hosts.processes(host) if name_of(pid)}

    before = running()
    yield
    hosts.mend(1)
    deadline = time.monotonic() + 3
    while (left := running() - before) and time.monotonic() < deadline:
        time.sleep(0.05)
    for pid in left:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
