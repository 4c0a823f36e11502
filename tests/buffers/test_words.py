"""Fenced words are those of a memoryview; without the native core only processors that keep the order have words."""

from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np
import pytest
from small_training import SMALL

from asyncrl import TrainConfig, Trainer, native
from asyncrl.buffers import words
from asyncrl.buffers.words import FencedWords, words_of
from asyncrl.config import host, machine
from asyncrl.config.machine import Machine

needs_core = pytest.mark.skipif(not native.LIBRARY.exists(), reason="needs the native core")


def access() -> tuple[native.LoadWord, native.StoreWord]:
    found = native.word_access()
    assert found is not None
    return found


@needs_core
def test_both_kinds_of_words_read_and_write_the_same_memory() -> None:
    array = np.array([3, -(2**63), 2**63 - 1, 7], dtype=np.int64)
    view, fenced = memoryview(array), FencedWords(array, access())  # type: ignore[arg-type]
    assert list(fenced) == list(view) and len(fenced) == len(view) == 4
    assert fenced[0] == 3 and fenced[-1] == view[-1] == 7
    fenced[1] = -5
    fenced[2] += 0
    view[3] = 2**40
    assert array.tolist() == [3, -5, 2**63 - 1, 2**40] == list(fenced)
    assert sum(fenced) == sum(array.tolist()) and max(fenced) == 2**63 - 1
    for place in (4, -5):
        with pytest.raises(IndexError):
            fenced[place]
        with pytest.raises(IndexError):
            fenced[place] = 1


@needs_core
def test_fenced_words_view_parts_of_arrays_and_keep_their_memory() -> None:
    whole = np.arange(10, dtype=np.int64)
    part = FencedWords(whole[1::3], access())
    assert list(part) == [1, 4, 7]
    part[2] = -1
    assert whole[7] == -1
    alone = FencedWords(np.full(1000, 9, dtype=np.int64), access())
    assert set(alone) == {9} and list(FencedWords(np.empty(0, dtype=np.int64), access())) == []


@pytest.mark.parametrize("keeps_order", [True, False])
def test_the_processor_decides_which_words_there_are(monkeypatch: pytest.MonkeyPatch, keeps_order: bool) -> None:
    monkeypatch.setattr(words, "keeps_store_order", lambda: keeps_order)
    monkeypatch.setattr(words, "word_access", lambda: (int, print))
    assert isinstance(words_of(np.zeros(2, np.int64)), memoryview if keeps_order else FencedWords)
    for wrong in (np.zeros(2, np.int32), np.zeros((2, 2), np.int64)):
        with pytest.raises(ValueError, match="words are int64 with one dimension"):
            words_of(wrong)


@needs_core
def test_without_the_native_core_other_processors_train_in_one_process(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(host, "keeps_store_order", lambda: False)
    assert Machine.detect().shares_words
    monkeypatch.setattr(machine, "LIBRARY", native.LIBRARY.with_name("missing.so"))
    assert not Machine.detect().shares_words
    monkeypatch.setattr(words, "keeps_store_order", lambda: False)
    monkeypatch.setattr(words, "word_access", lambda: None)
    in_one_process = TrainConfig(**{**SMALL, "train_for_env_steps": 200}, train_dir=str(tmp_path), experiment="serial")
    assert Trainer(in_one_process, preset="none").run().summary.num_updates > 0


@needs_core
def test_the_functions_for_words_have_the_types_of_c() -> None:
    cell = ctypes.c_int64(-(2**62))
    load, store = access()
    assert load(ctypes.addressof(cell)) == -(2**62)
    store(ctypes.addressof(cell), 2**62)
    assert cell.value == 2**62
