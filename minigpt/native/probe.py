"""Loads the compiled C code and calls some of it; compiled.py runs this file in a process that may crash.

It needs the standard library only, so that it starts in some 10 ms. It prints what the processor lacks.
"""

import ctypes
import sys


def main(path: str, *openmps: str) -> None:
    """Tries the library at this path, with the first OpenMP that lets it load; prints nothing if it cannot load."""
    if sys.platform != "win32":
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # no core dump at each start of minigpt
    for openmp in openmps:
        try:
            if openmp:
                ctypes.CDLL(openmp, ctypes.RTLD_GLOBAL)
            library = ctypes.CDLL(path)
            break
        except OSError:
            continue
    else:
        return
    if not hasattr(library, "minigpt_lacking"):  # outdated
        return
    library.minigpt_lacking.restype = library.minigpt_use.restype = ctypes.c_char_p
    lacking = library.minigpt_lacking()
    if lacking:
        sys.stdout.write(lacking.decode())
        return
    library.minigpt_training_use(ctypes.c_char_p(library.minigpt_use(None)))
    numbers, result = (ctypes.c_float * 64)(1), (ctypes.c_float * 64)()
    library.minigpt_gelu(0, result, numbers, ctypes.c_int64(64), 1)


if __name__ == "__main__":
    main(*sys.argv[1:])
