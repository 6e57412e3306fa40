"""JupyterLab in a real browser: the widgets, used with the mouse and the keyboard.

Needs Chromium, JupyterLab and playwright (the `browser` extra); skipped without them.
SCREENSHOTS=FOLDER keeps pictures of what was seen.
"""

import contextlib
import json
import os
import re
import secrets
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from decimal import Decimal
from pathlib import Path

import nbformat
import numpy as np
import pytest

from helpers import machine

sync_api = pytest.importorskip("playwright.sync_api", reason="needs playwright")
pytest.importorskip("jupyterlab", reason="needs JupyterLab")
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
CHROMIUM = next(filter(None, map(shutil.which, NAMES)), None)
if not CHROMIUM:
    pytest.skip("needs Chromium on the PATH", allow_module_level=True)
REPOSITORY = Path(__file__).resolve().parents[1]
KERNEL_S, STEP_S = 180, 20  # how long a kernel, and a change on the page, may take
QUIET = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
# Asked for, and missing in a new installation; the badge, without a network.
NOT_OURS = re.compile(r"favicon|/lab/api/workspaces/|colab-badge\.svg")


class Lab:
    """A JupyterLab of its own, with the notebooks, no news and a chosen theme."""

    def __init__(self, home):
        self.folder, self.home = home / "course", home
        for name in ("notebooks", "helpers"):
            shutil.copytree(REPOSITORY / name, self.folder / name)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.token = secrets.token_hex()
        self.set("apputils-extension/notification", fetchNews="false")
        folders = {
            "JUPYTERLAB_SETTINGS_DIR": "settings",
            "JUPYTER_CONFIG_DIR": "config",
        }
        folders |= {"JUPYTERLAB_WORKSPACES_DIR": "spaces", "JUPYTER_RUNTIME_DIR": "run"}
        command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root"]
        command += [f"--ServerApp.root_dir={self.folder}", f"--port={self.port}"]
        command += [f"--IdentityProvider.token={self.token}", "--port-retries=0"]
        self.log = open(home / "log", "w")  # noqa: SIM115
        self.process = subprocess.Popen(
            command,
            env=os.environ | {name: str(home / f) for name, f in folders.items()},
            stdout=self.log,
            stderr=subprocess.STDOUT,
        )
        self.wait()

    def set(self, name, **settings):
        path = self.home / f"settings/@jupyterlab/{name}.jupyterlab-settings"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(settings))

    def wait(self):
        address = f"http://127.0.0.1:{self.port}/api?token={self.token}"
        for _ in range(120):
            with contextlib.suppress(OSError), urllib.request.urlopen(address):
                return
            time.sleep(0.5)
        raise TimeoutError((self.home / "log").read_text())

    def address(self, name):
        return f"http://127.0.0.1:{self.port}/lab/tree/{name}?reset&token={self.token}"

    def part(self, source, name, *words):
        """Write a notebook of the code cells with these words; return its path."""
        notebook = nbformat.read(self.folder / "notebooks" / source, as_version=4)
        code = [cell for cell in notebook.cells if cell.cell_type == "code"]
        wanted = [code[0], *(c for c in code[1:] if any(w in c.source for w in words))]
        for cell in wanted:
            cell.outputs, cell.execution_count = [], None
        notebook.cells = wanted
        nbformat.write(notebook, self.folder / "notebooks" / name)
        return f"notebooks/{name}"

    def close(self):
        self.process.terminate()
        self.process.wait(20)
        self.log.close()


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    lab = Lab(tmp_path_factory.mktemp("lab"))
    yield lab
    lab.close()


@pytest.fixture(scope="module")
def browser():
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=QUIET)
        yield browser
        browser.close()


@pytest.fixture
def page(browser):
    """A page that is to end without an error in its console."""
    page, errors = browser.new_page(viewport={"width": 1300, "height": 1000}), []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on(
        "console",
        lambda m: m.type == "error" and errors.append(f"{m.text} {m.location}"),
    )
    page.set_default_timeout(STEP_S * 1000)
    yield page
    page.close()
    assert [error for error in errors if not NOT_OURS.search(error)] == []


def run_all(lab, page, name, wanted):
    """Open a notebook, run all its cells from the menu, scroll to what is wanted."""
    notebook = nbformat.read(lab.folder / name, as_version=4)
    cells = sum(cell.cell_type == "code" for cell in notebook.cells)
    page.goto(lab.address(name), timeout=KERNEL_S * 1000)
    page.locator(".jp-Notebook .jp-CodeCell").first.wait_for(timeout=KERNEL_S * 1000)
    # Without a kernel it would ask for one; the status bar names it once it is there.
    page.get_by_text("Python 3 (ipykernel) | Idle").wait_for(timeout=KERNEL_S * 1000)
    page.get_by_role("menuitem", name="Run", exact=True).click()
    page.locator(".lm-Menu-itemLabel", has_text=re.compile("^Run All Cells$")).click()
    last = page.locator(".jp-InputPrompt", has_text=f"[{cells}]:")
    last.wait_for(state="attached", timeout=KERNEL_S * 1000)
    page.locator(".jp-Notebook").hover()
    for _ in range(100):  # what is far from the screen is not in the page
        if page.locator(wanted).count():
            break
        page.mouse.wheel(0, -500)
        page.wait_for_timeout(100)
    page.locator(wanted).last.scroll_into_view_if_needed()


def keep(locator, name):
    if folder := os.environ.get("SCREENSHOTS"):
        locator.screenshot(path=Path(folder, f"{name}.png"))


def facts(code):
    """Say what the explorer must show of an FP16 code; NumPy knows the value."""
    value = np.array(code, np.uint16).view(np.float16)
    sign, exponent, significand = code >> 15, code >> 10 & 31, code & 1023
    formula = f"{'+-'[sign]}2^({exponent} - 15) × (1 + {significand}/1024)"
    with np.errstate(over="ignore"):
        near = [float(np.nextafter(value, np.float16(x))) for x in (-np.inf, np.inf)]
    return [
        f"{formula} = {Decimal(float(value))}",
        f"neighbors: {near[0]!r} and {near[1]!r}",
        f"sign {sign}, exponent {exponent:05b} = {exponent}",
    ]


@pytest.mark.parametrize("theme", ["JupyterLab Light", "JupyterLab Dark"])
def test_the_bit_explorer_by_mouse_and_keyboard(lab, page, theme):
    lab.set("apputils-extension/themes", theme=theme)
    name = "notebooks/01_float_formats.ipynb"
    if theme.endswith("Dark"):  # the whole notebook once is enough
        words = "explore(number", "explorers,", "number ="
        name = lab.part("01_float_formats.ipynb", "01_dark.ipynb", *words)
    run_all(lab, page, name, ".jp-OutputArea .widget-dropdown select")
    panel = page.locator(".widget-vbox:has(select)").last
    panel.scroll_into_view_if_needed()
    bits = panel.locator("button")
    code = int(np.array(1.234567890, np.float16).view(np.uint16))

    def shows(code):
        for fact in facts(code):
            sync_api.expect(panel).to_contain_text(fact, timeout=STEP_S * 1000)
        assert "".join(bits.all_inner_texts()) == f"{code:016b}"

    shows(code)
    ink = bits.first.evaluate("bit => getComputedStyle(bit).color")
    assert ink == "rgb(34, 34, 34)"  # dark on its pale field, in a dark theme too
    for place in (0, 3, 15):  # sign, exponent, significand
        bits.nth(place).click()
        code ^= 1 << (15 - place)
        shows(code)
    bits.nth(7).focus()
    for key in ("Space", "Enter"):
        page.keyboard.press("Tab")
        page.keyboard.press(key)
        place = 8 if key == "Space" else 9
        code ^= 1 << (15 - place)
        shows(code)
    entry = panel.locator("input")
    entry.fill("0.1")
    entry.press("Enter")
    shows(int(np.array(0.1, np.float16).view(np.uint16)))
    keep(panel, f"explorer {theme}")
    panel.locator("select").select_option("BF16")
    sync_api.expect(panel).to_contain_text("= 0.10009765625")  # 205 × 2^-11, rounded
    sync_api.expect(panel).to_contain_text("exponent 01111011 = 123")
    entry.fill("a tenth")
    entry.press("Enter")
    sync_api.expect(panel).to_contain_text("'a tenth'")
    sync_api.expect(panel).to_contain_text("= 0.10009765625")  # nothing is lost
    keep(page, f"page {theme}")


@pytest.mark.parametrize("theme", ["JupyterLab Light", "JupyterLab Dark"])
def test_the_selection_guide_answers_for_another_gpu(lab, page, theme):
    lab.set("apputils-extension/themes", theme=theme)
    words = "import copy", "explorers.recommend("
    name = f"10_{theme.split()[1]}.ipynb"  # each a kernel of its own
    path = lab.part("10_putting_it_together.ipynb", name, *words)
    run_all(lab, page, path, ".jp-OutputArea .widget-dropdown select")
    panel = page.locator(".widget-vbox:has(select)").last
    for name in ("T4", "H200"):
        panel.locator("select").first.select_option(name)
        asked = ("transformer", "varying", "large", machine.gpu(name))
        for advice in machine.recommend(*asked).advice:
            sync_api.expect(panel).to_contain_text(advice.do)
            sync_api.expect(panel).to_contain_text(advice.why)
    keep(panel, f"guide {theme}")


def test_without_widgets_a_static_twin_is_shown(lab, page):
    path = lab.part("01_float_formats.ipynb", "01_twin.ipynb", "explore(", "explorers,")
    notebook = nbformat.read(lab.folder / path, as_version=4)
    block = "import sys\n\nsys.modules['ipywidgets'] = None"
    notebook.cells.insert(0, nbformat.v4.new_code_cell(block))
    notebook.cells[-1].source = 'explore("0.1", "FP16")'
    nbformat.write(notebook, lab.folder / path)
    run_all(lab, page, path, ".jp-OutputArea-output table")
    shown = page.locator(".jp-OutputArea").last
    sync_api.expect(shown).to_contain_text("ipywidgets is not installed")
    code = int(np.array(0.1, np.float16).view(np.uint16))
    for fact in facts(code):
        sync_api.expect(shown).to_contain_text(fact)
    assert not page.locator(".jp-OutputArea .widget-dropdown").count()
