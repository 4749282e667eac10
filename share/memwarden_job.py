# SPDX-License-Identifier: MIT OR Apache-2.0
"""Marks the jobs of a program, for memwarden's --jobs-by mark:

    import memwarden_job

    with memwarden_job.job():
        decode_a_frame()

job(release=NANOSECONDS) counts from a planned release, on time.monotonic_ns().
A job that an exception ends has a mark, too. Where memwarden doesn't run the
program, or has ended, this does nothing.
"""

import contextlib
import os
import signal
import stat
import time


@contextlib.contextmanager
def job(release=None):
    begin = time.monotonic_ns()
    try:
        yield
    finally:
        end = time.monotonic_ns()
        _write(f"{begin if release is None else release} {begin} {end}\n".encode())


def _open():
    """Opens memwarden's pipe; none if nothing reads it."""
    try:
        # Without O_NONBLOCK, it would wait for a reader.
        fd = os.open(os.environ["MEMWARDEN_JOBS"], os.O_WRONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (KeyError, OSError):
        return None
    opened = os.fstat(fd)
    if not stat.S_ISFIFO(opened.st_mode):
        os.close(fd)
        return None
    # Writes wait while the pipe is full, so that no mark is lost.
    os.set_blocking(fd, True)
    return fd, opened


def _is_open(fd, opened):
    """False if the program has closed the pipe; its number may then be that of another file."""
    try:
        return os.path.samestat(os.fstat(fd), opened)
    except OSError:
        return False


_marks = _open()


def _write(line):
    """Writes without a SIGPIPE, which the program may have set to its default."""
    global _marks
    if _marks is not None and not _is_open(*_marks):
        _marks = _open()
    if _marks is None:
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:
        signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGPIPE,))
        os.write(_marks[0], line)
    except BrokenPipeError:
        _marks = None
        signal.sigtimedwait((signal.SIGPIPE,), 0)
    except OSError:
        pass
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
