# SPDX-License-Identifier: MIT OR Apache-2.0
"""Marks the jobs of a program, for memwarden's --jobs-by mark:

    import memwarden_job

    with memwarden_job.job():
        decode_a_frame()

job(release=NANOSECONDS) counts from a planned release, on time.monotonic_ns().
A job that an exception ends has a mark, too. Where memwarden doesn't run the
program, this does nothing.
"""

import contextlib
import os
import time

try:
    _marks = os.open(os.environ["MEMWARDEN_JOBS"], os.O_WRONLY | os.O_CLOEXEC)
except (KeyError, OSError):
    _marks = None


@contextlib.contextmanager
def job(release=None):
    begin = time.monotonic_ns()
    try:
        yield
    finally:
        end = time.monotonic_ns()
        if _marks is not None:
            with contextlib.suppress(OSError):
                mark = f"{begin if release is None else release} {begin} {end}\n"
                os.write(_marks, mark.encode())
