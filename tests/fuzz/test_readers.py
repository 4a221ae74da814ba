"""Every target of the fuzzer reads its whole files, and reads or refuses some damaged ones."""

import os
import random
import subprocess
import sys
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from damage import mutations, rearrange
from measured import is_over
from scripts import load_script

fuzzer: Any = load_script("tests/fuzz/readers.py")


@pytest.mark.parametrize("name", fuzzer.TARGETS)
def test_a_damaged_file_is_read_or_refused(tmp_path: Path, name: str) -> None:
    with fuzzer.ready(name, tmp_path) as (target, whole):
        for index, seed in enumerate(target.seeds()):
            assert fuzzer.run_input(target, whole, seed) == "read"
            answers = {
                fuzzer.run_input(target, whole, bytes([index]) + damaged)
                for damaged in islice(mutations(seed[1:], seed=index), 20)
            }
            draw = random.Random(index)
            answers |= {
                fuzzer.run_input(target, whole, bytes([index]) + rearrange(seed[1:], draw, fuzzer.LARGEST))
                for _ in range(20 * target.markup)
            }
            assert answers <= {"read", "refused"}
        assert fuzzer.contents(target) == whole


@pytest.mark.skipif(sys.platform != "linux", reason="the peak is read from Linux's /proc")
@pytest.mark.parametrize("every", [7, pytest.param(1, marks=pytest.mark.slow)])
def test_every_reader_answers_a_megabyte_within_its_budget(tmp_path: Path, every: int) -> None:
    script = Path(__file__).with_name("readers.py")
    command = [sys.executable, str(script), "--large", str(tmp_path), "--every", str(every)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    answers = dict(line.split(": ", 1) for line in done.stdout.splitlines())
    assert {input.split(", ")[0] for input in answers} == set(fuzzer.TARGETS)
    assert {input: line for input, line in answers.items() if is_over(line)} == {}


def test_an_error_that_is_no_refusal_is_a_finding(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"whole")

    def read(path: Path) -> None:
        if path.read_bytes() != b"whole":
            raise KeyError("damaged")

    target = fuzzer.Target((path,), read)
    with pytest.raises(KeyError, match="damaged"):
        fuzzer.run_input(target, fuzzer.contents(target), b"\0damaged")
    assert path.read_bytes() == b"whole"
