"""Run by the interpreter of a browser driver's own virtual environment: `python page_check.py CHROMIUM PORT FOLDER`.

Looks at the status page as a person would, on wide, dark and narrow screens, while another process sends requests. Writes a screenshot of
each to FOLDER and prints what it saw as JSON.
"""

from __future__ import annotations

import json
import sys

from playwright.sync_api import Page, sync_playwright

SCREENS = {"light": (1280, 900, "light"), "dark": (1280, 900, "dark"), "narrow": (390, 844, "dark")}
ARGUMENTS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip
# Of the text of every element that has text of its own: the least contrast to what is behind it (WCAG 2, "contrast ratio").
CONTRAST = """() => {
  const parts = text => text.match(/[\\d.]+/g).map(Number)
  const light = ([r, g, b]) => [r, g, b].map(v => v / 255).map(v => v <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [.2126, .7152, .0722][i], 0)
  const behind = node => {
    for (let each = node; each; each = each.parentElement) {
      const style = getComputedStyle(each)
      const color = parts((style.backgroundImage.match(/rgb[^)]*\\)/) || [style.backgroundColor])[0])
      if (color.length < 4 || color[3] > 0) return color
    }
    return [255, 255, 255]
  }
  let least = 99
  for (const node of document.querySelectorAll("body *:not(script):not(style)"))
    if ([...node.childNodes].some(each => each.nodeType === 3 && each.textContent.trim())) {
      const both = [light(parts(getComputedStyle(node).color)), light(behind(node))].sort((a, b) => b - a)
      least = Math.min(least, (both[0] + .05) / (both[1] + .05))
    }
  return least
}"""


def look(page: Page, url: str, shot: str) -> dict[str, object]:
    said: list[str] = []
    asked: list[str] = []
    page.on("console", lambda message: said.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    page.goto(url)
    page.wait_for_selector("section table")
    first = page.inner_text("#state")
    page.wait_for_function("before => document.getElementById('state').innerText !== before", arg=first, timeout=30_000)  # it goes on
    tried = page.locator("section", has_text="twice, version 2")
    tried.get_by_text("Try it").click()
    body = tried.locator("textarea").input_value()
    tried.get_by_role("button").click()
    state = page.inner_text("#state")
    page.wait_for_function("before => document.getElementById('state').innerText !== before", arg=state, timeout=30_000)
    page.wait_for_function(
        "() => [...document.querySelectorAll('output')].some(each => each.innerText.includes('outputs'))", timeout=30_000
    )
    page.screenshot(path=shot, full_page=True)
    return {
        "tried": [body, tried.locator("output").inner_text()],
        "said": said, "asked": asked, "state": [first, page.inner_text("#state")], "title": page.inner_text("#server"),
        "sections": page.locator("section").all_inner_texts(), "contrast": page.evaluate(CONTRAST),
        "widths": page.evaluate("[document.documentElement.scrollWidth, innerWidth]"),
        "background": page.evaluate("getComputedStyle(document.body).backgroundColor"),
    }  # fmt: skip


def main(chromium: str, port: str, folder: str) -> None:
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=ARGUMENTS)
        seen: dict[str, object] = {}
        for name, (width, height, scheme) in SCREENS.items():
            page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)
            seen[name] = look(page, f"http://127.0.0.1:{port}/", f"{folder}/{name}.png")
            page.close()
        browser.close()
    print(json.dumps(seen))


if __name__ == "__main__":
    main(*sys.argv[1:])
