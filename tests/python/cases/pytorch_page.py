"""docs/pytorch.md and pytorch_more.md: both sides of every section compute the same."""

from cases.models import *

PAGES = ROOT / "docs/pytorch.md", ROOT / "docs/pytorch_more.md"
TOLERANCES = {"Mixed precision": 2e-2}
GPU_ONLY = "# FSDP2, on GPUs"


class Untied(Model):
    """FSDP2 shards tied parameters in one unit only, so these are not."""

    def __init__(self) -> None:
        super().__init__(depth=2)
        self.head = nn.Linear(32, 50, bias=False)


def sections() -> dict[str, dict[str, str]]:
    """Code by heading and by the side that its first line names."""
    found: dict[str, dict[str, str]] = {}
    for part in re.split(r"^## ", "".join(page.read_text() for page in PAGES), flags=re.MULTILINE):
        heading = part.partition("\n")[0]
        blocks = re.findall(r"^```python\n(.*?)^```", part, flags=re.MULTILINE | re.DOTALL)
        found[heading] = {block.partition("\n")[0]: block for block in blocks}
    return found


def names_of_torch() -> dict[str, Any]:
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint import state_dict
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    names = {"fully_shard": fully_shard, "MixedPrecisionPolicy": MixedPrecisionPolicy, "dcp": dcp}
    names["StateDictOptions"] = state_dict.StateDictOptions
    for name in ("set_model_state_dict", "get_state_dict", "set_state_dict"):
        names[name] = getattr(state_dict, name)
    return names


def run(code: str, common: str, folder: Path) -> dict[str, Any]:
    """The names that a side's code leaves behind; both sides start from the same model."""
    torch.manual_seed(0)
    names: dict[str, Any] = names_of_torch() | {
        "Block": Block,
        "F": F,
        "Model": Untied,
        "batches": {RANK: part_of(batch_of(0)).repeat(2, 1).to(DEVICE)},
        "device": DEVICE,
        "folder": str(folder),
        "functools": functools,
        "rank": RANK,
        "torch": torch,
        "whole": make(Untied).state_dict(),
        "zerorun": zerorun,
    }
    torch.manual_seed(0)
    exec(common, names)  # noqa: S102 - the page is ours
    with warnings.catch_warnings():
        if "torch.compile" in code:
            warnings.simplefilter("ignore")  # of the compiler itself
        exec(code, names)  # noqa: S102
    return names


def case_every_line_of_the_page(folder: Path) -> None:
    with_process_group()
    pages = sections()
    (common,) = (block for blocks in pages.values() for block in blocks.values() if "both" in block)
    pairs = {heading: blocks for heading, blocks in pages.items() if "# zerorun" in blocks}
    assert len(pairs) >= 10
    for index, (heading, blocks) in enumerate(pairs.items()):
        ours = run(blocks["# zerorun"], common, folder / f"zerorun{index}")
        if GPU_ONLY not in blocks:
            theirs = run(blocks["# FSDP2"], common, folder / f"fsdp{index}")
            for name in ("losses", "norms"):
                expected = theirs.get(name, [])
                assert len(ours.get(name, [])) == len(expected), heading
                found = torch.tensor(ours.get(name, []))
                tolerance = TOLERANCES.get(heading, 1e-4)
                limits = {"rtol": tolerance, "atol": 1e-5, "msg": heading}
                torch.testing.assert_close(found, torch.tensor(expected), **limits)
        ours["engine"].destroy()
