"""A step with a teacher compiles without a graph break."""

import pytest
from compiling import assert_compiles

from minigpt.data.corpus import Corpus


@pytest.mark.filterwarnings("ignore")  # of torch.compile itself
def test_a_compiled_step_with_a_teacher_computes_what_the_plain_one_does(corpus: Corpus) -> None:
    assert_compiles(corpus, taught=True, distill="on")
