"""A process that runs OpenCL kernels: reads pickled jobs from its input, writes pickled answers.

A process of its own keeps the device's threads, and an abort of its compiler, out of the tests'
process. A job is a program's text, the compiler's options and a list of launches; a launch is the
kernel's name and its arguments: NumPy scalars, and arrays, which become buffers, one for each. The
answer is the buffers' contents after all launches, by launch and argument.
"""

import os
import pickle
import sys
import warnings


def devices():
    """All devices; pocl's, which are the same everywhere, before others."""
    import pyopencl as cl

    try:
        platforms = cl.get_platforms()
    except cl.LogicError:
        return []
    found = [device for platform in platforms for device in platform.get_devices()]
    return sorted(found, key=lambda device: "Portable" not in device.platform.name)


# Vectors of both floats, by functions of the device's own library, as the backend's kernels have.
PROBE = """
__kernel void probe(__global float* x) {
    size_t at = get_global_id(0);
    double8 wide = exp(convert_double8(vload8(at, x)));
    vstore8(exp2(convert_float8(wide) + 2), at, x);
}
"""


def probe():
    """Compiles and runs a kernel on the first device, and checks what it wrote; an error else."""
    import numpy as np
    import pyopencl as cl

    found = devices()
    if not found:
        raise SystemExit("pyopencl finds no OpenCL device")
    context = cl.Context(found[:1])
    answers = run(
        context,
        cl.CommandQueue(context),
        (PROBE, ("-cl-opt-disable",), [("probe", [np.zeros(128, "f4")])]),
    )
    if not np.allclose(answers[0][0], 8):
        raise SystemExit(f"a kernel wrote {answers[0][0]}")


# The compiler warns of a vector of 64 bytes as an argument where the processor that it compiles for
# has none. A kernel's functions and the device's library are compiled for the same one.
QUIET = '#pragma clang diagnostic ignored "-Wpsabi"\n'


def run(context, queue, job):
    import numpy as np
    import pyopencl as cl

    text, options, launches = job
    program = cl.Program(context, QUIET + text).build(options=list(options), cache_dir=False)
    flags = cl.mem_flags.READ_WRITE | cl.mem_flags.COPY_HOST_PTR
    buffers = {}
    for name, arguments in launches:
        for given in arguments:
            if isinstance(given, np.ndarray) and id(given) not in buffers:
                buffers[id(given)] = cl.Buffer(context, flags, hostbuf=given)
        passed = [buffers.get(id(given), given) for given in arguments]
        # A grid smaller than most results: the kernel's loop takes several rounds.
        cl.Kernel(program, name)(queue, (16,), (8,), *passed)
    answers = []
    for _, arguments in launches:
        contents = {}
        for at, given in enumerate(arguments):
            if isinstance(given, np.ndarray):
                contents[at] = np.empty_like(given)
                cl.enqueue_copy(queue, contents[at], buffers[id(given)])
        answers.append(contents)
    return answers


def serve(answers):
    # The compiler's warnings fail a job.
    warnings.simplefilter("error")
    import pyopencl as cl

    found = devices()
    if not found:
        return pickle.dump(None, answers)
    context = cl.Context(found[:1])
    queue = cl.CommandQueue(context)
    pickle.dump(f"{found[0].name}, {found[0].version}", answers)
    answers.flush()
    while True:
        try:
            job = pickle.load(sys.stdin.buffer)
        except EOFError:
            return None
        try:
            answer = run(context, queue, job)
        except (cl.Error, Warning) as error:
            answer = f"{type(error).__name__}: {error}"
        pickle.dump(answer, answers)
        answers.flush()


def main():
    if sys.argv[1:] == ["probe"]:
        return probe()
    # The answers have standard output to themselves.
    with os.fdopen(os.dup(1), "wb") as answers:
        os.dup2(2, 1)
        return serve(answers)


if __name__ == "__main__":
    main()
