"""llama.cpp as a process of its own: a text's ids, or the logits of ids; it knows nothing of minigpt.

python -P minigpt/exporters/llama_process.py model.gguf <<< '[1, 2, 3]' > logits.npy
python -P minigpt/exporters/llama_process.py model.gguf <<< '"Once upon a time"' > ids.npy
"""

import io
import json
import os
import sys

UNUSABLE = b"unusable: "  # before the reason, where llama-cpp-python itself does not start; no file is to blame


def main(path: str) -> None:
    """Reads the text or the ids as JSON from standard input, and writes the ids (T,) or the logits (T, V) as .npy.

    Where llama-cpp-python does not start, the answer is UNUSABLE and why.
    """
    answer = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # llama.cpp may print to where the answer belongs
    try:
        import llama_cpp
    except Exception as error:  # whatever a broken installation raises: a library of another system, a missing one
        answer.write(UNUSABLE + " ".join(f"{type(error).__name__}: {error}".split()).encode())
        answer.close()
        return
    import numpy as np

    question = json.load(sys.stdin)
    if isinstance(question, str):
        llama = llama_cpp.Llama(path, vocab_only=True, verbose=False)
        result = np.array(llama.tokenize(question.encode(), add_bos=False, special=False), dtype=np.int64)
    else:
        f32 = llama_cpp.GGML_TYPE_F32
        llama = llama_cpp.Llama(path, n_ctx=len(question), logits_all=True, type_k=f32, type_v=f32, verbose=False)
        llama.eval(question)
        result = np.array(llama.scores[: len(question)], dtype=np.float32)
    content = io.BytesIO()  # to a file numpy writes in a way that a pipe does not have
    np.save(content, result)
    answer.write(content.getvalue())
    answer.close()


if __name__ == "__main__":
    main(sys.argv[1])
