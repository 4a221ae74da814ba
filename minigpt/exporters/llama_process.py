"""A program that runs llama.cpp: prints the ids of a text, or the logits of ids. It imports nothing of minigpt.

python -P minigpt/exporters/llama_process.py model.gguf <<< '[1, 2, 3]' > logits.npy
python -P minigpt/exporters/llama_process.py model.gguf <<< '"Once upon a time"' > ids.npy
"""

import io
import json
import os
import sys

UNUSABLE = b"unusable: "  # prefix of the reason if llama-cpp-python itself does not start, whatever the file


def main(path: str) -> None:
    """Reads a text or ids as JSON from standard input, and writes the ids (T,) or the logits (T, V) as .npy.

    If llama-cpp-python does not start, it writes UNUSABLE and the reason.
    """
    answer = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # llama.cpp may print to standard output, too
    try:
        import llama_cpp
    except Exception as error:  # a broken installation may raise anything: a library is missing, or for another system
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
    content = io.BytesIO()  # numpy cannot write to a pipe
    np.save(content, result)
    answer.write(content.getvalue())
    answer.close()


if __name__ == "__main__":
    main(sys.argv[1])
