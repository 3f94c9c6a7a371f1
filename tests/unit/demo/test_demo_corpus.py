"""The text that ships with Python, as numbers."""

from pathlib import Path

import pytest
import torch

from gradwire.demo import corpus


def test_words_are_cut_as_in_the_penn_treebank() -> None:
    words = corpus.tokenize("Return 3.14, or `self._x`; don't…\n>>> f(12)")
    assert words == [
        "return", "N", ",", "or", "`", "self", ".", "_x", "`", ";", "don't", "…",
        ">>>", "f", "(", "N", ")",
    ]  # fmt: skip


def test_a_run_of_one_mark_is_one_word() -> None:
    assert corpus.tokenize("---- ... ==>") == ["----", "...", "==", ">"]


def test_a_name_with_a_digit_is_split_at_it() -> None:
    assert corpus.tokenize("utf8") == ["utf", "N"]


@pytest.mark.parametrize("text", ["", " \n\t"])
def test_a_text_without_words_has_none(text: str) -> None:
    assert corpus.tokenize(text) == []


def test_the_vocabulary_is_the_most_frequent_words_and_ties_go_by_spelling() -> None:
    assert corpus.vocabulary(list("bacadba"), size=4) == ("<unk>", "a", "b", "c")


def test_rare_words_are_unknown() -> None:
    texts = ["a a a b"] * 2
    built = corpus.build(1, texts)
    assert built.words == ("<unk>", "a", "<eos>", "b")
    assert built.train.tolist() == [1, 1, 1, 3, 2, 1, 1, 1, 3]
    assert built.held_out.tolist() == [2]


def test_the_python_text_fills_the_vocabulary_and_the_held_out_slice() -> None:
    texts = corpus.python_documents()
    assert len(texts) == len(set(texts))
    built = corpus.build(1616, texts)
    assert len(built.words) == corpus.VOCABULARY
    assert len(built.train) > 200_000
    assert int(built.train.max()) < corpus.VOCABULARY
    assert built.train.dtype == torch.int64
    assert len(built.held_out) == 1616
    unknown = (built.train == 0).float().mean()
    assert 0 < float(unknown) < 0.03


@pytest.mark.full
def test_the_text_is_the_same_every_time() -> None:
    one, other = corpus.build(held_out=1616), corpus.build(held_out=1616)
    assert one.words == other.words
    assert torch.equal(one.train, other.train)
    assert torch.equal(one.held_out, other.held_out)


def test_docstrings_of_modules_classes_and_nested_functions_are_found(tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text(
        '"""one"""\nclass A:\n    """two"""\n    def f(self):\n        """three"""\n'
        'async def g():\n    "four"\n    def h():\n        "five"\n'
    )
    assert list(corpus._docstrings_of(path)) == ["one", "two", "three", "four", "five"]


@pytest.mark.parametrize("source", [b"print 'two'", b"\xff\xfe", b"a\0b"])
def test_files_that_are_no_modules_are_left_out(tmp_path: Path, source: bytes) -> None:
    path = tmp_path / "template.py"
    path.write_bytes(source)
    assert list(corpus._docstrings_of(path)) == []


def test_a_saved_corpus_can_be_read_without_trust(tmp_path: Path) -> None:
    built = corpus.build(2, ["a b c d e f"])
    built.save(tmp_path / "text.pt")
    read = torch.load(tmp_path / "text.pt", weights_only=True)
    assert torch.equal(read["train"], built.train)
    assert torch.equal(read["held_out"], built.held_out)
