"""Run by the interpreter of a browser driver's own virtual environment: `python report_check.py CHROMIUM PAGE FOLDER`.

Looks at a page of `disc explain` on a wide screen and on a phone's. Writes a screenshot of each to FOLDER and prints what it saw as JSON.
"""

from __future__ import annotations

import json
import sys

from playwright.sync_api import sync_playwright

SCREENS = {"wide": (1280, 900), "phone": (390, 844)}
ARGUMENTS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
]
# How far what stands in the table and in the boxes reaches to the right, and how high letters of boxes are.
REACH = """() => Math.max(...[...document.querySelectorAll("#table td, .box *")]
  .map(each => each.getBoundingClientRect()).filter(each => each.width).map(each => each.right))"""
LETTERS = "() => Math.min(...[...document.querySelectorAll('.box text')].map(each => each.getBoundingClientRect().height))"
IN_SIGHT = """() => { const { top, bottom } = document.querySelector("#details").getBoundingClientRect(); return bottom > 0 && top < innerHeight }"""
OVERLAPS = """() => [...document.querySelectorAll(".box")].filter(box => {
  const [title, time] = [...box.querySelectorAll("text")].map(each => each.getBoundingClientRect())
  return title.right > time.left
}).length"""


def main(chromium: str, address: str, folder: str) -> None:
    seen: dict[str, object] = {}
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=ARGUMENTS)
        for name, (width, height) in SCREENS.items():
            said: list[str] = []
            page = browser.new_page(viewport={"width": width, "height": height})
            page.on("console", lambda message, said=said: said.append(message.text))
            page.on("pageerror", lambda error, said=said: said.append(str(error)))
            page.goto(address)
            page.screenshot(path=f"{folder}/{name}.png", full_page=True)
            seen[name] = {
                "said": said, "reach": page.evaluate(REACH), "letters": page.evaluate(LETTERS), "overlaps": page.evaluate(OVERLAPS),
                "columns": page.locator("#table th:visible").all_inner_texts(), "scrolls": page.evaluate("document.documentElement.scrollWidth"),
            }  # fmt: skip
            page.locator(".box").last.click()
            seen[f"{name}, chosen"] = page.inner_text("#details")
            seen[f"{name}, in sight"] = page.evaluate(IN_SIGHT)
            page.locator("#search").fill("no such module")
            seen[f"{name}, found"] = page.locator("#table tbody tr:visible").count()
            page.close()
        browser.close()
    print(json.dumps(seen))


if __name__ == "__main__":
    main(*sys.argv[1:])
