"""A program in the place of the helper process: it speaks the protocol, or breaks it.

python stand_in.py HOW LIBCUDNN: HOW is one of WAYS. It needs no libcudnn. "plan" answers each
graph with a plan, whose text is STAND_IN_TEXT of the environment, or STAND_IN_BYTES bytes.
"""

import json
import os
import signal
import struct
import sys
import time


def say(message):
    """Write a frame: its length and JSON."""
    text = json.dumps(message).encode()
    raw(struct.pack("<I", len(text)) + text)


def raw(data):
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def hear():
    """Read a frame; None at the end."""
    head = sys.stdin.buffer.read(4)
    if len(head) < 4:
        return None
    return json.loads(sys.stdin.buffer.read(struct.unpack("<I", head)[0]))


def ready():
    say({"ready": {"version": "9.27.0"}})


def document(request):
    """A plan as the real helper sends it, of a graph that it was sent."""
    text = os.environ.get("STAND_IN_TEXT", "x" * int(os.environ.get("STAND_IN_BYTES", "100")))
    engine = {"index": 7, "knobs": [["KERNEL_CFG", 1]], "notes": ["TENSOR_CORE"]}
    part = {
        "graph": request["graph"],
        "aliases": [],
        "mode": "a",
        "engine": engine,
        "workspace_bytes": 0,
        "constants": [],
        "json": text,
    }
    steps = ["a stand-in's plan"]
    return {"cudnn": "9.27.0", "parts": [part], "workspace_bytes": 0, "passed": [], "steps": steps}


def plan():
    ready()
    while (request := hear()) is not None:
        if "plan" in request:
            say({"plan": document(request["plan"])})
        else:
            say("reloaded")


def at_once():
    sys.stderr.write("no room in the lifeboat\n")
    sys.exit(3)


def garbage():
    raw(b"Hello, I am another program.\n" * 10)
    time.sleep(600)


def huge():
    raw(b"\xff\xff\xff\xff" + b"x" * 100)
    time.sleep(600)


def promises():
    raw(struct.pack("<I", 60 << 20) + b"{")
    time.sleep(600)


def half():
    raw(struct.pack("<I", 100) + b'{"ready": {"ver')


def no_json():
    raw(struct.pack("<I", 4) + b"oops")
    time.sleep(600)


def other_json():
    say({"ready": {"colour": "green"}})
    time.sleep(600)


def answers_before_it_is_asked():
    say("reloaded")
    time.sleep(600)


def closes():
    ready()
    hear()
    sys.stdout.flush()
    os.close(1)
    time.sleep(600)


def nonsense():
    ready()
    hear()
    raw(b"\x04\x00\x00\x00oops")
    time.sleep(600)


def another_answer():
    ready()
    while hear() is not None:
        say("reloaded")


def ready_twice():
    ready()
    ready()
    time.sleep(600)


def a_plan_of_nothing():
    ready()
    hear()
    say({"plan": {"cudnn": "9.27.0", "parts": "none"}})
    time.sleep(600)


def crashes():
    ready()
    hear()
    os.kill(os.getpid(), signal.SIGSEGV)


def says_nothing():
    time.sleep(600)


def answers_nothing():
    ready()
    while hear() is not None:
        pass


def never_reads():
    ready()
    time.sleep(600)


WAYS = {
    way.__name__: way
    for way in (
        plan,
        at_once,
        garbage,
        huge,
        promises,
        half,
        no_json,
        other_json,
        answers_before_it_is_asked,
        closes,
        nonsense,
        another_answer,
        ready_twice,
        a_plan_of_nothing,
        crashes,
        says_nothing,
        answers_nothing,
        never_reads,
    )
}

if __name__ == "__main__":
    WAYS[sys.argv[1]]()
