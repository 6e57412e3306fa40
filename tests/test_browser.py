"""The widgets in JupyterLab, in a real browser: by mouse and keyboard, light and dark.

Skipped without Chromium, JupyterLab or playwright (the extra `browser`). The folder
that the environment variable SCREENSHOTS names, if any, gets pictures of the widgets.
"""

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

import numpy as np
import pytest

from helpers import machine

playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright")
pytest.importorskip("jupyterlab", reason="needs JupyterLab")
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
CHROMIUM = next(filter(None, map(shutil.which, NAMES)), None)
if not CHROMIUM:
    pytest.skip("needs Chromium or Chrome on the PATH", allow_module_level=True)

expect = playwright.expect
REPOSITORY = Path(__file__).resolve().parents[1]
START_S, STEP_S = 120, 30  # for a server, a kernel or a chapter; for one change
NO_WEB = "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
FLAGS += ["--no-proxy-server", NO_WEB]
NOT_OURS = {  # errors in the console that say nothing about the course, and why
    "colab-badge.svg": "a picture on the web, to which this browser has no access",
}
SETTINGS = {  # no window with news; all cells in the page, also those out of sight
    "apputils-extension/notification.jupyterlab-settings": '{"fetchNews": "false"}',
    "notebook-extension/tracker.jupyterlab-settings": '{"windowingMode": "none"}',
}
SET_UP = ("homes = ", "from helpers import")  # words of the first two code cells
DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class Lab:
    """A JupyterLab on a copy of the course, with none of the user's settings."""

    def __init__(self, home):
        self.home = home
        for name in ("notebooks", "helpers"):
            shutil.copytree(REPOSITORY / name, home / "course" / name)
        for name, text in SETTINGS.items():
            self.write(f"config/lab/user-settings/@jupyterlab/{name}", text)
        self.write("bare/ipywidgets.py", "raise ImportError('not in this kernel')")
        command = [sys.executable, "-m", "ipykernel", "-f", "{connection_file}"]
        bare = {"argv": command, "display_name": "Python without ipywidgets"}
        bare["env"] = {"PYTHONPATH": str(home / "bare")}
        self.write("data/kernels/bare/kernel.json", json.dumps(bare))
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.url, self.token = f"http://127.0.0.1:{port}", secrets.token_hex()
        command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root"]
        command += [f"--port={port}", "--ServerApp.port_retries=0"]
        command += [f"--ServerApp.root_dir={home / 'course'}"]
        command += [f"--IdentityProvider.token={self.token}"]
        env = {k: v for k, v in os.environ.items() if not k.startswith("JUPYTER")}
        for name in ("config", "data", "runtime"):
            env[f"JUPYTER_{name.upper()}_DIR"] = str(home / name)
        with (home / "log").open("w") as log:
            to = {"stdout": log, "stderr": subprocess.STDOUT}
            self.process = subprocess.Popen(command, env=env, **to)

    def write(self, name, text):
        path = self.home / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    def wait(self, path, ready=bool):
        """Wait until the server gives an answer that is ready; else show its log."""
        end = time.monotonic() + START_S
        while self.process.poll() is None and time.monotonic() < end:
            try:
                with DIRECT.open(f"{self.url}{path}?token={self.token}") as answer:
                    if ready(json.load(answer)):
                        return
            except OSError:
                pass  # it is still starting
            time.sleep(0.2)
        raise TimeoutError((self.home / "log").read_text())

    def open(self, page, name, kernel="python3"):
        """Open a chapter and wait until the page is connected to its kernel."""
        text = (self.home / "course" / "notebooks" / name).read_text(encoding="utf-8")
        notebook, name = json.loads(text), f"{kernel}_{name}"
        notebook["metadata"]["kernelspec"]["name"] = kernel
        self.write(f"course/notebooks/{name}", json.dumps(notebook))
        page.goto(f"{self.url}/lab/tree/notebooks/{name}?reset&token={self.token}")

        def connected(sessions):  # the page says "idle" before it has a kernel
            here = [s["kernel"] for s in sessions if s["name"] == name]
            return any(
                k["connections"] and k["execution_state"] == "idle" for k in here
            )

        self.wait("/api/sessions", connected)


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    lab = Lab(tmp_path_factory.mktemp("lab"))
    try:
        lab.wait("/api")
        yield lab
        lab.process.terminate()  # its kernels end with it
        lab.process.wait(STEP_S)
    finally:
        lab.process.kill()


@pytest.fixture(scope="module")
def browser():
    expect.set_options(timeout=STEP_S * 1000)
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser.new_context(viewport={"width": 1300, "height": 1000})
        browser.close()


@pytest.fixture
def page(browser):
    """A page that must end without an error of ours in its console."""
    page, errors = browser.new_page(), []
    page.set_default_timeout(START_S * 1000)

    def note(message):
        if message.type == "error":
            errors.append(f"{message.text} {message.location}")

    page.on("console", note)
    page.on("pageerror", lambda error: errors.append(str(error)))
    yield page
    page.close()
    assert [e for e in errors if not any(noise in e for noise in NOT_OURS)] == []


def choose(page, menu, *labels):
    page.get_by_role("menuitem", name=menu, exact=True).click()
    for label in labels:
        entry = re.compile(f"^{label}$")
        page.locator(".lm-Menu-itemLabel", has_text=entry).last.click()


def run(page, *words):
    """Run the first cell with each of these words by hand; return the last one."""
    for count, word in enumerate(words, 1):
        cell = page.locator(".jp-CodeCell", has_text=word).first
        cell.locator(".cm-content").click()
        page.keyboard.press("Control+Enter")
        prompt = cell.locator(".jp-InputPrompt")
        expect(prompt).to_have_text(f"[{count}]:", timeout=START_S * 1000)
    return cell


FAINT = r"""panel => {  // texts of less contrast with what is behind than WCAG 2 asks
    const parts = color => color.match(/[\d.]+/g).map(v => v / 255);
    const light = ([r, g, b]) =>
        0.05 + 0.2126 * r ** 2.2 + 0.7152 * g ** 2.2 + 0.0722 * b ** 2.2;
    const behind = element => {
        const color = parts(getComputedStyle(element).backgroundColor);
        return color[3] === 0 ? behind(element.parentElement) : color;
    };
    const faint = element => {
        const ink = parts(getComputedStyle(element).color);
        const ratio = light(ink) / light(behind(element));
        return Math.max(ratio, 1 / ratio) < 4.5;
    };
    const worded = e => [...e.childNodes].some(n => n.nodeType == 3 && n.data.trim());
    const all = [...panel.querySelectorAll(":not(option)")];
    return all.filter(worded).filter(faint).map(e => e.outerHTML);
}"""


def look(page, panel, name):
    """See it in both themes: its text must stand out from what is behind it."""
    for theme in ("Light", "Dark"):
        choose(page, "Settings", "Theme", f"JupyterLab {theme}")
        light = str(theme == "Light").lower()
        expect(page.locator("body")).to_have_attribute("data-jp-theme-light", light)
        panel.scroll_into_view_if_needed()
        if folder := os.environ.get("SCREENSHOTS"):
            file = Path(folder, f"{name} {theme}.png".lower())
            panel.screenshot(path=file)
            page.screenshot(path=file.with_stem(f"{file.stem} page"))
        assert panel.evaluate(FAINT) == []


def code_of(value, kind=np.float16):
    return int(kind(value).view(f"u{kind().itemsize}"))


def facts(code, kind=np.float16):
    """Say what must be shown of a normal number; NumPy knows FP16 and FP32."""
    form = np.finfo(kind)
    value = np.array(code, f"u{form.bits // 8}").view(kind)[()]
    text, bias = f"{code:0{form.bits}b}", 2 ** (form.nexp - 1) - 1
    sign, exponent, significand = text[0], text[1 : -form.nmant], text[-form.nmant :]
    power, fraction = int(exponent, 2), int(significand, 2)
    below, above = (float(np.nextafter(value, kind(x))) for x in (-np.inf, np.inf))
    return [
        f"sign {sign}, exponent {exponent} = {power}, "
        f"significand {significand} = {fraction}",
        f"normal: {'+-'[int(sign)]}2^({power} - {bias}) × "
        f"(1 + {fraction}/{2**form.nmant}) = {Decimal(float(value))}",
        f"neighbors: {below!r} and {above!r}",
        f"spacing here: {float(np.spacing(abs(value))):.6g}",
    ]


def test_the_bit_explorer_by_mouse_and_keyboard(lab, page):
    lab.open(page, "01_float_formats.ipynb")
    choose(page, "Run", "Run All Cells")
    panel = page.locator(".jp-OutputArea .widget-vbox", has=page.locator("select"))
    panel.wait_for(state="attached")
    prompts = page.locator(".jp-CodeCell .jp-InputPrompt")
    expect(prompts.last).to_have_text(f"[{prompts.count()}]:", timeout=START_S * 1000)
    entry, choice = panel.locator("input"), panel.locator("select")
    bits = panel.locator("button")

    def shows(code, kind=np.float16):
        for fact in facts(code, kind):
            expect(panel).to_contain_text(fact)
        expect(bits).to_have_text(list(f"{code:0{np.finfo(kind).bits}b}"))

    def enter(text):
        entry.fill(text)
        entry.press("Enter")

    code = code_of(1.234567890)
    shows(code)
    for place in (0, 3, 15):  # in the sign, the exponent, the significand
        bits.nth(place).click()
        code ^= 1 << (15 - place)
        shows(code)
        value = Decimal(float(np.uint16(code).view(np.float16)))
        expect(entry).to_have_value(str(value))
    bits.nth(7).focus()
    for place, key in ((8, "Space"), (9, "Enter")):
        page.keyboard.press("Tab")
        page.keyboard.press(key)
        code ^= 1 << (15 - place)
        shows(code)
        expect(bits.nth(place)).to_be_focused()  # ready to be pressed again
    enter("-0.1")
    shows(code_of(-0.1))
    look(page, panel, "explorer")
    choice.select_option("FP32")
    shows(code_of(-0.1, np.float32), np.float32)
    choice.select_option("BF16")
    expect(panel).to_contain_text("= -0.10009765625")  # -205 × 2^-11
    enter("a <i>tenth</i>")
    expect(panel).to_contain_text("'a <i>tenth</i>' is not a decimal number")
    expect(panel).to_contain_text("= -0.10009765625")  # nothing is lost
    choice.select_option("FP16")
    shows(code_of(-0.1))
    enter("70000")
    expect(panel).to_contain_text("inf: +infinity")


def test_the_selection_guide_answers_for_another_gpu(lab, page):
    lab.open(page, "10_putting_it_together.ipynb")
    panel = run(page, *SET_UP, "explorers.recommend(").locator(".widget-vbox")
    for name in ("T4", "H200"):
        panel.locator("select").first.select_option(name)
        asked = ("transformer", "varying", "large", machine.gpu(name))
        advice = machine.recommend(*asked).advice
        rows = [f"{a.topic}{a.do}{a.why} (source)" for a in advice]
        expect(panel.locator("tr")).to_have_text(rows)
    # JupyterLab stays open where a reader follows a link.
    expect(panel.locator("a[target=_blank]")).to_have_count(len(rows))
    look(page, panel, "guide")


def test_without_ipywidgets_the_static_twin_is_shown(lab, page):
    lab.open(page, "01_float_formats.ipynb", kernel="bare")
    cell = run(page, *SET_UP, "number = ", "explore(number")
    expect(cell).to_contain_text("the explorer is shown without its buttons")
    for fact in facts(code_of(1.234567890)):
        expect(cell.locator(".jp-RenderedHTML")).to_contain_text(fact)
    expect(page.locator(".jupyter-widgets")).to_have_count(0)
    look(page, cell.locator(".jp-RenderedHTML"), "explorer twin")
