"""The examples in docs/client/ run unchanged."""

from __future__ import annotations

import ast
import asyncio
import inspect
import os
import re
import subprocess
import sys
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

import httpx2
import pytest
import trio
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from tests.soak import in_short_soak
from trionsq.client import Producer
from trionsq.testing import OpenBroker, open_broker

T = TypeVar("T")
ROOT = Path(__file__).parents[2]
PAGES = ROOT / "docs" / "client"
LIMIT_S = 60


def examples(page: str) -> list[str]:
    """The Python code of a page."""
    text = (PAGES / page).read_text(encoding="utf-8")
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)


def module(source: str, name: str = "example") -> ModuleType:
    """An example as a module of its own, where pydantic and taskiq can look up its names."""
    made = sys.modules[name] = ModuleType(name)
    exec(compile(source, f"docs/client/{name}", "exec"), made.__dict__)
    return made


def run_asyncio(main: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run it in a thread: in the main one a browser of other tests may have an event loop."""

    async def limited() -> T:
        async with asyncio.timeout(LIMIT_S):
            return await main()

    with ThreadPoolExecutor(1) as threads:
        return threads.submit(lambda: asyncio.run(limited())).result()


def count(nsqd: OpenBroker, topic: str) -> int:
    """How many messages were published."""
    return nsqd.broker.topics[topic].core.message_count


def test_each_page_has_a_test() -> None:
    """A new page cannot stay untried."""
    tested = inspect.getsource(sys.modules[__name__])
    for page in PAGES.glob("*.md"):
        assert not examples(page.name) or f'"{page.name}"' in tested, page.name


def test_asyncio(nsqd: OpenBroker, capsys: pytest.CaptureFixture[str]) -> None:
    """All that is published is consumed."""
    (source,) = examples("asyncio.md")
    run_asyncio(lambda: module(source).main(nsqd.tcp_address))
    assert "100 messages" in capsys.readouterr().out


def test_trio(nsqd: OpenBroker, capsys: pytest.CaptureFixture[str]) -> None:
    """The same on trio, in the main thread, where it may receive signals."""
    (source,) = examples("trio.md")
    trio.run(module(source).main, nsqd.tcp_address)
    assert "100 messages" in capsys.readouterr().out


def test_threads(nsqd: OpenBroker, capsys: pytest.CaptureFixture[str]) -> None:
    """The same with the blocking client."""
    (source,) = examples("threads.md")
    module(source).main(nsqd.tcp_address)
    assert "100 messages" in capsys.readouterr().out


def test_fastapi(nsqd: OpenBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request publishes; one that is no order is refused."""
    (source,) = examples("fastapi.md")
    monkeypatch.setenv("NSQD", nsqd.tcp_address)
    example = module(source, "fastapi_example")

    async def main() -> list[int]:
        async with example.app.router.lifespan_context(example.app):
            transport = httpx2.ASGITransport(app=example.app)
            async with httpx2.AsyncClient(transport=transport, base_url="http://test") as client:
                good = await client.post("/orders", json={"number": 1})
                bad = await client.post("/orders", json={"number": "one"})
                return [good.status_code, bad.status_code]

    assert run_asyncio(main) == [202, 422]
    assert count(nsqd, "orders") == 1


DJANGO = """
import django
from django.conf import settings
from django.urls import path
settings.configure(
    ALLOWED_HOSTS=["*"], ROOT_URLCONF=__name__, SECRET_KEY="none",
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
)
django.setup()
import views
urlpatterns = [path("orders", views.create_order)]
from django.test import Client
answer = Client().post("/orders", b"17", content_type="text/plain")
print(answer.status_code)
views.producer.close()
"""


def test_django(nsqd: OpenBroker, tmp_path: Path) -> None:
    """A request publishes when its transaction has ended."""
    (source,) = examples("django.md")
    (tmp_path / "views.py").write_text(source)
    (tmp_path / "site_of_test.py").write_text(DJANGO)
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    done = subprocess.run(
        [sys.executable, "-c", "import site_of_test"],
        env=os.environ | {"PYTHONPATH": path, "NSQD": nsqd.tcp_address},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.stdout.split() == ["202"], done.stderr
    assert count(nsqd, "orders") == 1


def test_notebook(nsqd: OpenBroker) -> None:
    """The cells run one after the other, with `await` as in Jupyter, in one event loop."""
    cells = examples("notebooks.md")
    assert '"127.0.0.1:4150"' in cells[0]
    names: dict[str, Any] = {}

    async def run_cell(source: str) -> None:
        flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
        result = eval(compile(source, "cell", "exec", flags=flags), names)
        if inspect.iscoroutine(result):
            await result

    async def main() -> None:
        for cell in cells:
            await run_cell(cell.replace("127.0.0.1:4150", nsqd.tcp_address))

    run_asyncio(main)
    assert sum(row["value"] for row in names["rows"]) == 67.5
    assert count(nsqd, "readings") == 10


def test_taskiq(nsqd: OpenBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both tasks are sent; tests/client/test_taskiq.py has the workers."""
    (source,) = examples("taskiq.md")
    monkeypatch.setenv("NSQD", nsqd.tcp_address)
    run_asyncio(lambda: module(source, "taskiq_example").main())
    assert count(nsqd, "tasks") == 2


async def test_typed_messages() -> None:
    """The order arrives, and what is none goes to the hook."""
    source = examples("handlers.md")[0]
    async with open_broker() as nsqd:
        with trio.fail_after(LIMIT_S):
            orders = await module(source, "typed_example").main(nsqd.tcp_address)
        assert [order.number for order in orders] == [17]
        assert nsqd.broker.topics["orders"].channel("billing").core.held == 0


async def test_middleware() -> None:
    """A duplicate is finished and not handled."""
    source = examples("handlers.md")[1]
    async with open_broker() as nsqd:
        async with Producer(nsqd.tcp_address) as producer:
            await producer.publish_many("orders", [b"a", b"a", b"b"])
        with trio.fail_after(LIMIT_S):
            handled = await module(source).main(nsqd.tcp_address, 2)
        assert sorted(handled) == [b"a", b"b"]


def test_handlers_in_threads(nsqd: OpenBroker) -> None:
    """All that is published is handled."""
    source = examples("handlers.md")[2]
    handled = module(source, "threaded_example").main(nsqd.tcp_address, 10)
    assert sorted(handled) == list(range(10))


async def test_traces(capsys: pytest.CaptureFixture[str]) -> None:
    """The span of the handler is a child of the publisher's."""
    source = examples("handlers.md")[3]
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    async with open_broker() as nsqd:
        with trio.fail_after(LIMIT_S):
            await module(source).main(nsqd.tcp_address, provider)
    assert capsys.readouterr().out == "17\n"
    publishing, processing = exporter.get_finished_spans()
    assert processing.parent is not None
    assert processing.parent.span_id == publishing.context.span_id
    provider.shutdown()


@pytest.mark.parametrize("number", [0, *(pytest.param(n, marks=in_short_soak) for n in (1, 2, 3))])
def test_coming_from_another_client(nsqd: OpenBroker, tmp_path: Path, number: int) -> None:
    """Each of the programs side by side does the same. In a process: gevent changes modules."""
    source = examples("coming-from.md")[number]
    (tmp_path / "program.py").write_text(source)
    code = "import sys, program; print(program.run(sys.argv[1], 5))"
    done = subprocess.run(
        [sys.executable, "-c", code, nsqd.tcp_address],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = ast.literal_eval(done.stdout.splitlines()[-1])
    assert sorted(map(bytes, found)) == [b"%d" % one for one in range(5)]
