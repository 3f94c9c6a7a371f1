"""The data of the recipes: made from what Python itself ships, or drawn; nothing is downloaded."""

from __future__ import annotations

import csv
import pickle
import random
import re
import sysconfig
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import torch

MODULES = (
    "argparse ast calendar codecs configparser csv dataclasses datetime difflib doctest enum "
    "fractions ftplib functools gettext imaplib inspect ipaddress locale mailbox optparse os pdb "
    "pickle pickletools pkgutil plistlib pydoc random shutil smtplib socket ssl statistics "
    "subprocess tarfile tempfile textwrap threading trace traceback uuid weakref zipfile"
)


def text() -> str:
    """Returns the source of some modules of Python's standard library, in ASCII."""
    folder = Path(sysconfig.get_path("stdlib"))
    whole = "\n".join((folder / f"{name}.py").read_text("utf-8") for name in MODULES.split())
    return whole.encode("ascii", "ignore").decode()


def characters(folder: Path) -> None:
    """Writes nanoGPT's train.bin, val.bin and meta.pkl: each character of the text is a token."""
    whole = text()
    symbols = sorted(set(whole))
    number = {symbol: i for i, symbol in enumerate(symbols)}
    tokens = np.array([number[symbol] for symbol in whole], dtype=np.uint16)
    cut = len(tokens) * 9 // 10
    tokens[:cut].tofile(folder / "train.bin")
    tokens[cut:].tofile(folder / "val.bin")
    meta = {"vocab_size": len(symbols), "itos": dict(enumerate(symbols)), "stoi": number}
    (folder / "meta.pkl").write_bytes(pickle.dumps(meta))


def words(folder: Path) -> None:
    """Writes train.txt, valid.txt and test.txt: words and signs, the rare ones as <unk>."""
    lines = [re.findall(r"\w+|[^\w\s]", line) for line in text().splitlines()]
    often = Counter(word for line in lines for word in line)
    kept = [[w if often[w] >= 6 else "<unk>" for w in line] for line in lines if line]
    cut = len(kept) // 20
    parts = {"valid": kept[:cut], "test": kept[cut : 2 * cut], "train": kept[2 * cut :]}
    for name, part in parts.items():
        (folder / f"{name}.txt").write_text("\n".join(map(" ".join, part)))


def pictures(folder: Path) -> None:
    """Writes scikit-learn's digits as train/DIGIT/N.png and val/DIGIT/N.png, 32 x 32."""
    from PIL import Image
    from sklearn.datasets import load_digits

    digits = load_digits()
    for i, (pixels, digit) in enumerate(zip(digits.images, digits.target)):
        place = folder / ("val" if i % 5 == 0 else "train") / f"{digit}"
        place.mkdir(parents=True, exist_ok=True)
        picture = Image.fromarray((pixels * 15.9).astype(np.uint8))
        picture.resize((32, 32)).convert("RGB").save(place / f"{i}.png")


def tokens(folder: Path) -> None:
    """Writes text/N.txt, all.txt, and a tokenizer of 2,000 tokens, trained on them."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    whole = text()
    (folder / "text").mkdir()
    size = len(whole) // 20 + 1
    for i in range(20):
        (folder / "text" / f"{i:02}.txt").write_text(whole[i * size : (i + 1) * size])
    (folder / "all.txt").write_text(whole)
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=2000, special_tokens=["<s>", "</s>"], initial_alphabet=alphabet
    )
    made.train_from_iterator(whole.splitlines(keepends=True), trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=made, bos_token="<s>", eos_token="</s>", pad_token="</s>"
    )
    fast.save_pretrained(folder / "tokenizer")


def pairs(folder: Path) -> None:
    """Writes pairs/train.csv and pairs/validation.csv: two lines of text, and whether they follow
    each other; and a BERT of four layers that knows nothing yet, with its tokenizer."""
    from transformers import BertConfig, BertModel

    tokens(folder)
    (folder / "tokenizer").rename(folder / "bert")
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=2000, hidden_size=256, num_hidden_layers=4, num_attention_heads=4,
        intermediate_size=512, max_position_embeddings=128,
    )  # fmt: skip
    BertModel(config).save_pretrained(folder / "bert")
    lines = [line.strip() for line in text().splitlines() if len(line.strip()) > 20]
    dice = random.Random(0)
    (folder / "pairs").mkdir()
    for name, count in (("train", 4800), ("validation", 64)):
        with (folder / "pairs" / f"{name}.csv").open("w") as file:
            rows = csv.writer(file)
            rows.writerow(["query", "product_title", "relevance_label"])
            for _ in range(count):
                at, other, label = *dice.sample(range(1, len(lines)), 2), dice.randint(0, 1)
                rows.writerow([lines[at - 1], lines[at if label else other], label])


def chunks(folder: Path) -> None:
    """Writes what `tokens` does, and text/train and text/val, as litgpt's TextFiles makes them."""
    from litdata import optimize
    from litdata.streaming import TokensLoader

    tokens(folder)
    files = sorted((folder / "text").glob("*.txt"))
    for part, inputs in (("val", files[:1]), ("train", files[1:])):
        optimize(
            partial(_numbers, tokenizer=folder / "tokenizer" / "tokenizer.json"),
            [f"{file}" for file in inputs], output_dir=f"{folder / 'text' / part}",
            num_workers=1, chunk_bytes="50MB", item_loader=TokensLoader(block_size=65),
        )  # fmt: skip


def _numbers(file: str, tokenizer: Path) -> Iterator[torch.Tensor]:
    from tokenizers import Tokenizer

    ids = Tokenizer.from_file(f"{tokenizer}").encode(Path(file).read_text()).ids
    yield torch.tensor(ids, dtype=torch.int32)


MAKERS: dict[str, Callable[[Path], None]] = {
    maker.__name__: maker for maker in (characters, words, pictures, tokens, pairs, chunks)
}
