"""The site of `make docs`: links out of docs/, and that it builds without warnings."""

from __future__ import annotations

import importlib.util
import logging
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from tests.soak import in_short_soak

ROOT = Path(__file__).parent.parent


def hooks() -> ModuleType:
    """The hooks, which mkdocs imports by their path."""
    spec = importlib.util.spec_from_file_location("docs_hooks", ROOT / "scripts" / "docs_hooks.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def rewritten(markdown: str, page: str = "client/asyncio.md") -> str:
    """The page as mkdocs gets it."""
    shown = SimpleNamespace(file=SimpleNamespace(src_uri=page))
    return str(hooks().on_page_markdown(markdown, page=shown))


def test_links_to_the_source_become_text(caplog: pytest.LogCaptureFixture) -> None:
    """Others stay, for mkdocs to check."""
    kept = "[a](../client.md#publish) [b](https://nsq.io) [c](#here) ![d](x.png) [e](../gone.md)"
    assert rewritten(kept) == kept
    assert rewritten("see [the\nreadme](../../README.md#top).") == "see the\nreadme."
    assert rewritten("[deploy](../deploy/)", "README.md") == "deploy"
    assert not caplog.records


def test_a_link_to_a_file_that_is_gone_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    """Which is an error of the build."""
    caplog.set_level(logging.WARNING, "mkdocs")
    rewritten("[gone](../../trionsq/gone.py)")
    assert "../../trionsq/gone.py leads nowhere" in caplog.text


@in_short_soak
def test_the_site_builds(tmp_path: Path) -> None:
    """Without warnings; the reference has what the docstrings say."""
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(tmp_path / "site")],
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    reference = (tmp_path / "site" / "client" / "reference.html").read_text()
    assert "At most this many handlers" in reference or "at most this many handlers" in reference
    assert " ::" not in reference
