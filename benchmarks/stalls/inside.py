"""Runs a daemon of a checkout with its event loop watched: inside.py SOCKET CHECKOUT MODULE ARGS.

The watcher is always that of this checkout, so that two of them are measured alike. It answers on
a unix socket, from a thread: `reset` forgets what was seen, `read` tells it as JSON.
"""

from __future__ import annotations

import importlib.util
import json
import os
import runpy
import socket
import sys
import threading
from pathlib import Path
from typing import Any

STEPS = Path(__file__).parents[2] / "trionsq" / "debug" / "steps.py"


def _document(watch: Any) -> dict[str, Any]:
    return {
        "steps": watch.steps,
        "longest_turn_cpu_ms": watch.longest_turn_cpu_ns / 1e6,
        "slowest": [
            {
                "duration_ms": step.duration_ms,
                "own_ms": step.own_ms,
                "cpu_ms": step.cpu_ms,
                "queued_ms": step.queued_ms,
                "garbage_ms": step.garbage_ms,
                "task": step.task,
                "ran": step.ran,
                "after": step.after and str(step.after),
            }
            for step in watch.slowest
        ],
        "garbage": {
            str(generation): {"count": pauses.count, "longest_cpu_ms": pauses.longest_cpu_ms}
            for generation, pauses in watch.garbage.items()
        },
    }


def _answer(listener: socket.socket, watch: Any) -> None:
    while True:
        asking, _ = listener.accept()
        with asking:
            if asking.recv(16) == b"reset":
                watch.reset()
                asking.sendall(b"{}")
            else:
                asking.sendall(json.dumps(_document(watch)).encode())


def main() -> None:
    """Run the module as `python -m` would, with `trio.run` watched."""
    where, checkout, module, *arguments = sys.argv[1:]
    sys.path[0] = checkout
    import trio

    spec = importlib.util.spec_from_file_location("watched_steps", STEPS)
    assert spec is not None
    assert spec.loader is not None
    steps = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = steps  # dataclasses look there
    spec.loader.exec_module(steps)
    run = trio.run

    def run_watched(function: Any, *args: Any, **options: Any) -> Any:
        with steps.StepWatch() as watch, socket.socket(socket.AF_UNIX) as listener:
            listener.bind(where)
            listener.listen()
            threading.Thread(target=_answer, args=(listener, watch), daemon=True).start()
            options["instruments"] = [*options.get("instruments", ()), watch]
            return run(function, *args, **options)

    trio.run = run_watched  # type: ignore[assignment]
    sys.argv = [module, *arguments]
    os.chdir(checkout)
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
