"""What the programs of this folder train: small random models, a tokenizer, and data."""

import tempfile
from typing import Any

WORDS = 60
VOCABULARY = 64  # the words and the four special tokens
SPECIAL = ("<pad>", "<unk>", "<s>", "</s>")
LLAMA = {"vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 64}
LLAMA |= {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
LLAMA |= {"max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3}


def tokenizer() -> Any:
    """Of words w0, w1, ..., with a chat template."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    names = [*SPECIAL, *(f"w{number}" for number in range(WORDS))]
    numbers = {name: at for at, name in enumerate(names)}
    backend = Tokenizer(models.WordLevel(numbers, unk_token=SPECIAL[1]))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    kinds = ("pad_token", "unk_token", "bos_token", "eos_token")
    special = dict(zip(kinds, SPECIAL, strict=True))
    made = PreTrainedTokenizerFast(tokenizer_object=backend, padding_side="left", **special)
    made.chat_template = (
        "{% for message in messages %}{{ message['content'] + ' </s> ' }}{% endfor %}"
    )
    return made


def sentence(number: int, length: int = 12) -> str:
    """Words that follow each other by a rule, so that there is something to learn."""
    word, step = number * 7 % WORDS, 1 + number % 5
    return " ".join(f"w{(word + step * at) % WORDS}" for at in range(length))


def sequences(random: Any, length: int) -> Any:
    """Numbers of words of two sentences."""
    import torch

    first = torch.randint(0, WORDS, (2, 1), generator=random)
    return (first + 3 * torch.arange(length)) % WORDS


def llama(**changes: Any) -> Any:
    """A random Llama; the same on every rank."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(**(LLAMA | changes)))


def bert(**changes: Any) -> Any:
    """A random BERT that classifies, without dropout; the same on every rank."""
    import torch
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(0)
    shape = {"vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 64}
    shape |= {"num_hidden_layers": 2, "num_attention_heads": 4}
    dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    return BertForSequenceClassification(BertConfig(**shape, **dropout, **changes))


def save_llama() -> str:
    """A folder for `from_pretrained`, which rank 0 writes."""
    import torch.distributed as dist

    folder = shared_folder()
    if dist.get_rank() == 0:
        llama().save_pretrained(folder)
        tokenizer().save_pretrained(folder)
    dist.barrier()
    return folder


def shared_folder() -> str:
    """A new one that all ranks know."""
    import torch.distributed as dist

    folders = [tempfile.mkdtemp()]
    dist.broadcast_object_list(folders)
    return folders[0]
