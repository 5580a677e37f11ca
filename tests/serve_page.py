"""The page of `octet serve` in headless Chromium, driven through chromedriver: loaded, typed into, streamed,
stopped, reloaded, on a narrow screen.

usage: serve_page.py URL [SCREENSHOTS]    exit code 77 where there is no chromedriver
"""
import base64
import json
import pathlib
import shutil
import subprocess
import sys
import time
import urllib.request

URL = sys.argv[1]
PICTURES = pathlib.Path(sys.argv[2]) if len(sys.argv) > 2 else None
ENTER, ESCAPE = "\ue007", "\ue00c"


class Browser:
    def __init__(self):
        self.driver = subprocess.Popen(["chromedriver", "--port=0"], stdout=subprocess.PIPE, text=True)
        for line in self.driver.stdout:
            if "started successfully on port" in line:
                self.url = "http://127.0.0.1:" + line.split("port ")[1].strip(" .\n") + "/session"
                break
        arguments = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--window-size=1100,800"]
        options = {"goog:chromeOptions": {"args": arguments}, "goog:loggingPrefs": {"browser": "ALL"}}
        self.url += "/" + self.call("", {"capabilities": {"alwaysMatch": options}})["sessionId"]

    def call(self, path, body=None):
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, {"Content-Type": "application/json"})
        return json.load(urllib.request.urlopen(request, timeout=60))["value"]

    def run(self, script):
        return self.call("/execute/sync", {"script": script, "args": []})

    def wait(self, what, script, seconds=30):
        end = time.time() + seconds
        while not self.run(script):
            if time.time() > end:
                sys.exit(f"FAILED: {what}: not within {seconds} s; page: {self.run('return document.body.innerText')!r}")
            time.sleep(0.05)
        print(f"ok: {what}", flush=True)

    def keys(self, text):
        element = self.call("/element/active")
        self.call("/element/" + next(iter(element.values())) + "/value", {"text": text})

    def picture(self, name):
        if PICTURES:
            PICTURES.mkdir(parents=True, exist_ok=True)
            (PICTURES / f"{name}.png").write_bytes(base64.b64decode(self.call("/screenshot")))


def said(n, least=1):
    return ("const a = document.querySelectorAll('article.assistant');"
            f"return a.length == {n} && a[{n} - 1].textContent.length >= {least};")


def walk(b):
    b.call("/url", {"url": URL + "/"})
    b.wait("the model's name", "return document.getElementById('model').textContent.includes('positions')")
    b.wait("the cursor is in the message", "return document.activeElement.id == 'text'")
    b.keys("The history of the city" + ENTER)
    b.wait("an answer streams", said(1))
    b.wait("tokens/s are told", "return document.querySelector('article.assistant small')?.textContent.includes('tokens/s')", 90)
    b.wait("and the share of what the machine can read",
           "const share = document.querySelector('article.assistant small').textContent.match(/([\\d.e+-]+) % of the read limit of this machine/);"
           "return share && Number(share[1]) > 0 && Number(share[1]) < 200", 10)
    b.wait("the message stays on the screen", "return document.getElementById('text').getBoundingClientRect().bottom <= innerHeight")
    b.picture("answer")
    b.run("document.getElementById('new').click(); settings.max_tokens = '4000'")  # as long as the context has room
    b.run("""new MutationObserver((_, seen) => {  // Escape at the first token: a small model is soon done
      if (!document.querySelector('article.assistant')?.textContent) return;
      seen.disconnect();
      window.stopShown = document.getElementById('go').textContent;
      document.dispatchEvent(new KeyboardEvent('keydown', {key: 'Escape'}));
    }).observe(document.getElementById('texts'), {childList: true, subtree: true, characterData: true})""")
    b.keys("And then" + ENTER)
    b.wait("another streams, and the button says Stop", "return window.stopShown == 'Stop'")
    b.wait("it is stopped", "return document.getElementById('go').textContent == 'Send' &&"
           " [...document.querySelectorAll('article small')].some(s => s.textContent.includes('stopped'))")
    text = b.run("return document.getElementById('texts').innerText")
    b.call("/refresh", {})
    b.wait("it survives a reload", f"return document.getElementById('texts').innerText == {json.dumps(text)}")
    b.run("document.getElementById('new').click()")
    b.wait("a new conversation is empty", "return document.querySelectorAll('article').length == 0 && talks.length == 3")
    b.run("document.getElementById('set').click()")
    b.wait("settings open", "return document.getElementById('settings').open")
    b.picture("settings")
    b.keys(ESCAPE)
    b.wait("and close by keyboard", "return !document.getElementById('settings').open")
    b.run("choose(1)")
    b.call("/window/rect", {"width": 400, "height": 760})
    b.wait("a narrow screen has no bar beside", "return getComputedStyle(document.querySelector('nav')).display == 'none'")
    b.wait("and nothing sticks out", "return document.documentElement.scrollWidth <= innerWidth")
    b.picture("narrow")
    b.call("/goog/cdp/execute", {"cmd": "Emulation.setEmulatedMedia",
                                 "params": {"features": [{"name": "prefers-color-scheme", "value": "dark"}]}})
    b.wait("dark where the system is", "return getComputedStyle(document.body).backgroundColor == 'rgb(25, 25, 24)'")
    b.picture("dark")
    log = [e for e in b.call("/se/log", {"type": "browser"}) if e["level"] == "SEVERE"]
    if log:
        sys.exit(f"FAILED: the console has {log}")
    hosts = b.run("return performance.getEntriesByType('resource').map(e => new URL(e.name).origin)")
    if set(hosts) - {b.run("return location.origin"), "null"}:
        sys.exit(f"FAILED: asked other hosts: {set(hosts)}")
    print("ok: nothing came from other hosts, no error in the console")


if not shutil.which("chromedriver"):
    print("SKIPPED: no chromedriver")
    sys.exit(77)
browser = Browser()
try:
    walk(browser)
finally:
    try:
        browser.call("/window")
        urllib.request.urlopen(urllib.request.Request(browser.url, method="DELETE"), timeout=20)
    except OSError:
        pass
    browser.driver.kill()
