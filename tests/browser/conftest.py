"""A headless Chromium with the size of a desktop or a phone, in light, dark and print."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from selenium import webdriver
from selenium.webdriver.support.ui import WebDriverWait

import ringloom as rl
from ringloom.comparison import Comparison, compare
from ringloom.report.facts.recorded import recorded
from ringloom.report.page import page
from ringloom.simulator.chrome_trace import save_trace, trace
from ringloom.simulator.hardware import hardware

FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
)
PATIENCE = 60  # seconds
SIZES = {"desktop": (1280, 900), "phone": (390, 844)}
NAMES = ["ring", "striped", "zigzag", "balanced", "ulysses"]
WORK = rl.Workload(seq=4096, heads=16, kv_heads=16, head_dim=64, mask=rl.Causal())


@dataclass(frozen=True)
class Reader:
    """A browser with an open page."""

    driver: Any

    def open(self, url: str) -> "Reader":
        """Loads a page and waits until its pictures are drawn."""
        self.driver.get(url)
        self.wait("return document.documentElement.dataset.ready")
        return self

    def ask(self, code: str, *arguments: Any) -> Any:
        """Returns the result of a script in the page; `model` finds a bokeh model by name."""
        models = "const model = (name) => Bokeh.documents[0].get_model_by_name(name);"
        return self.driver.execute_script(models + code, *arguments)

    def wait(self, code: str, *arguments: Any) -> Any:
        """Waits until a script returns a true value."""
        return WebDriverWait(self.driver, PATIENCE, 0.1).until(lambda _: self.ask(code, *arguments))

    def tile_colours(self) -> NDArray[np.uint8]:
        """Reads the picture of the tiles: [rows, columns, red green blue alpha]."""
        width, flat = self.ask(
            "const figure = [...Bokeh.documents[0]._all_models.values()].find("
            "(m) => m.type === 'Figure' && m.name === 'tiles')\n"
            "const {glyph} = Bokeh.index.get_one(figure).renderer_views.get(figure.renderers[0])\n"
            "const image = glyph.image_data[0], {width, height} = image\n"
            "const {data} = image.getContext('2d').getImageData(0, 0, width, height)\n"
            "return [width, [...data]]"
        )
        return np.array(flat, np.uint8).reshape(-1, width, 4)

    def complaints(self) -> list[str]:
        """Lists the warnings and errors of the console."""
        told = self.driver.get_log("browser")
        return [one["message"] for one in told if one["level"] in ("WARNING", "SEVERE")]


def _driver() -> Any:
    options = webdriver.ChromeOptions()
    options.binary_location = "/usr/bin/chromium"
    for flag in FLAGS:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    return webdriver.Chrome(
        options=options, service=webdriver.ChromeService("/usr/bin/chromedriver")
    )


@pytest.fixture(scope="session")
def driver() -> Iterator[Any]:
    result = _driver()
    yield result
    result.quit()


@pytest.fixture
def reader(driver: Any) -> Callable[..., Reader]:
    def make(size: str = "desktop", scheme: str = "light") -> Reader:
        width, height = SIZES[size]
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1}
        phone = {"mobile": size == "phone"}
        driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics | phone)
        media = {"features": [{"name": "prefers-color-scheme", "value": scheme}], "media": ""}
        driver.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
        driver.get_log("browser")  # forget what earlier pages said
        return Reader(driver)

    return make


@pytest.fixture(scope="session")
def explored() -> Iterator[str]:
    """Yields the URL of a running `ringloom explore`."""
    command = [sys.executable, "-m", "ringloom", "explore", "--port", "0", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        yield json.loads(server.stdout.readline())["url"]
        server.terminate()


@pytest.fixture(scope="session")
def compared() -> Comparison:
    """Returns a comparison with cases in the order of NAMES; tests refer to them by number."""
    made = compare(WORK, 8, hardware("a100-nvlink"), NAMES)
    cases = sorted(made.cases, key=lambda one: NAMES.index(one.row.schedule))
    return replace(made, cases=tuple(cases))


@pytest.fixture(scope="session")
def report(compared: Comparison, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Returns the URL of a report on disk, with a recorded run of one of its schedules."""
    folder = tmp_path_factory.mktemp("report")
    file = save_trace(trace(compared.cases[2].prediction), folder / "run.json.gz")
    (folder / "report.html").write_text(page(compared, recorded(file)), encoding="utf-8")
    return Path(folder / "report.html").as_uri()
