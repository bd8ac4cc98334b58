"""A program that knows its own stacks: it parks threads in all kinds of Python
code, writes down what each executes, and stays so.

Prints one line of JSON: {thread's native id: [[file, name, first line], ...]},
innermost first. Run by any CPython from 3.10 on.
"""

import asyncio
import json
import os
import sys
import threading

FOREVER = threading.Lock()
FOREVER.acquire()
PARKED = threading.Semaphore(0)
NATIVE_IDS = {}
RECURSION = 300

UNICODE = """
def café(park):  # Latin-1: one byte a character
    return 函数(park)
def 函数(park):  # two bytes
    return 𠀀(park)
def 𠀀(park):  # four bytes
    park()
"""


def park():
    NATIVE_IDS[threading.get_ident()] = threading.get_native_id()
    PARKED.release()
    FOREVER.acquire()


def unicode_names(file):
    namespace = {}
    exec(compile(UNICODE, file, "exec"), namespace)
    return lambda: namespace["café"](park)


def recurse(depth=RECURSION):
    if depth > 1:
        recurse(depth - 1)
    else:
        park()


def generators():
    def inner():
        yield park()

    def outer():
        yield from inner()

    next(outer())


def coroutines():
    class Server:
        async def handle(self):
            park()

        async def serve(self):
            await asyncio.create_task(self.handle())

    asyncio.run(Server().serve())


def through_c():
    # Each of these enters Python again from C.
    sorted([1], key=lambda _: max([1], key=lambda _: park()))


class Instance:
    def __init__(self):
        self.make()

    def make(self):
        [park() for _ in range(1)]


TASKS = [
    park,
    unicode_names("/tmp/ünï/文件/𠀀😀.py"),
    unicode_names("/tmp/plain.py"),
    unicode_names(os.fsdecode(b"/tmp/not utf-8 \xff.py")),
    recurse,
    generators,
    coroutines,
    through_c,
    Instance,
]


def describe(frame):
    frames = []
    while frame:
        code = frame.f_code
        name = getattr(code, "co_qualname", code.co_name)
        frames.append([code.co_filename, name, code.co_firstlineno])
        frame = frame.f_back
    return frames


def main():
    for task in TASKS:
        threading.Thread(target=task, daemon=True).start()
    for _ in TASKS:
        PARKED.acquire()
    stacks = {
        NATIVE_IDS[t]: describe(f) for t, f in sys._current_frames().items() if t in NATIVE_IDS
    }
    stacks[threading.get_native_id()] = describe(sys._getframe())
    print(json.dumps(stacks), flush=True)
    FOREVER.acquire()


main()
