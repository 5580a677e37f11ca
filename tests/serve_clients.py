"""Real clients of PyPI against `octet serve`: openai, langchain-openai, litellm, lm-eval, aider.

usage: serve_clients.py URL [CLIENT...]    a server with --template plain; those that are not installed are
                                    said to be skipped. Exit code 77 if none is there.
"""
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import urllib.request

URL = sys.argv[1]
ONLY = sys.argv[2:]
PROMPT = "The history of the"
ran, skipped, failed = [], [], []


def check(what, good, found=None):
    if not good:
        failed.append(what)
        print(f"FAILED: {what}: {found!r}", flush=True)


def client(module):
    def keep(run):
        name = run.__name__
        if ONLY and name not in ONLY:
            return run
        if importlib.util.find_spec(module) is None:
            skipped.append(name)
            return run
        before = len(failed)
        try:
            run()
        except Exception as e:  # whatever a client raises is a finding
            check(f"{name}: no exception", False, e)
        ran.append(name)
        print(f"{name}: {'ok' if len(failed) == before else 'FAILED'}", flush=True)
        return run

    return keep


@client("openai")
def openai():
    import openai as api

    c = api.OpenAI(base_url=URL + "/v1", api_key="any", max_retries=0)
    model = c.models.list().data[0].id
    check("models/id", c.models.retrieve(model).id == model)
    ask = {"model": model, "prompt": PROMPT, "max_tokens": 12, "seed": 7, "temperature": 0.8}
    whole = c.completions.create(**ask)
    check("text", len(whole.choices[0].text) > 0 and whole.usage.completion_tokens == 12, whole)
    check("finish_reason", whole.choices[0].finish_reason == "length", whole)
    again = c.completions.create(**ask)
    check("the same seed, the same text", again.choices[0].text == whole.choices[0].text, again)
    pieces = list(c.completions.create(**ask, stream=True))
    check("a stream's text", "".join(p.choices[0].text for p in pieces if p.choices) == whole.choices[0].text, pieces)
    check("one finish_reason", sum(bool(p.choices and p.choices[0].finish_reason) for p in pieces) == 1)
    two = c.completions.create(**{**ask, "n": 2, "logprobs": 3})
    check("n", len(two.choices) == 2, two)
    check("logprobs", len(two.choices[0].logprobs.token_logprobs) == 12, two.choices[0].logprobs)
    talk = {"model": model, "messages": [{"role": "developer", "content": "Be brief."},
                                         {"role": "user", "content": [{"type": "text", "text": "Hello"}]}],
            "max_completion_tokens": 8, "seed": 1}
    chat = c.chat.completions.create(**talk, logprobs=True, top_logprobs=2)
    check("chat", chat.choices[0].message.role == "assistant", chat)
    check("chat logprobs", len(chat.choices[0].logprobs.content) == chat.usage.completion_tokens, chat)
    pieces = list(c.chat.completions.create(**talk, stream=True, stream_options={"include_usage": True}))
    text = "".join(p.choices[0].delta.content or "" for p in pieces if p.choices)
    check("chat stream", text == chat.choices[0].message.content, (text, chat))
    check("usage chunk", pieces[-1].usage and pieces[-1].usage.completion_tokens == chat.usage.completion_tokens)
    for what, kind, wrong in (("tools", api.BadRequestError, {"tools": [{"type": "function", "function": {"name": "f"}}]}),
                              ("too long", api.BadRequestError, {"messages": [{"role": "user", "content": "word " * 20000}]})):
        try:
            c.chat.completions.create(**{**talk, **wrong})
            check(f"{what} is refused", False)
        except kind as e:
            check(f"{what}: an error with a message", bool(e.body and e.body.get("message")), e)
    with c.chat.completions.create(**{**talk, "max_completion_tokens": 200}, stream=True) as stream:
        next(iter(stream))  # and leaves


@client("langchain_openai")
def langchain():
    from langchain_openai import ChatOpenAI, OpenAI

    common = {"base_url": URL + "/v1", "api_key": "any", "model": "octet", "temperature": 0, "max_retries": 0}
    chat = ChatOpenAI(max_tokens=8, **common)
    said = chat.invoke([("system", "Be brief."), ("human", "Hello")])
    check("invoke", isinstance(said.content, str) and said.usage_metadata["output_tokens"] > 0, said)
    check("stream", "".join(p.content for p in chat.stream("Hello")) == chat.invoke("Hello").content)
    llm = OpenAI(max_tokens=8, **common)
    check("completion", llm.invoke(PROMPT) == "".join(llm.stream(PROMPT)))
    check("batch", len(llm.batch([PROMPT, "Once upon a time"])) == 2)


@client("litellm")
def litellm():
    os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # else it asks another host when it is imported
    import litellm as lite

    lite.telemetry = False
    common = {"api_base": URL + "/v1", "api_key": "any", "max_tokens": 8, "temperature": 0, "num_retries": 0}
    said = lite.completion(model="openai/octet", messages=[{"role": "user", "content": "Hello"}], **common)
    check("chat", said.usage.completion_tokens > 0, said)
    pieces = lite.completion(model="openai/octet", messages=[{"role": "user", "content": "Hello"}], stream=True, **common)
    text = "".join(p.choices[0].delta.content or "" for p in pieces)
    check("stream", text == said.choices[0].message.content, (text, said))
    said = lite.text_completion(model="text-completion-openai/octet", prompt=PROMPT, **common)
    check("text", len(said.choices[0].text) > 0, said)


def sum_of_logprobs(context, rest):
    """What the server itself says of a continuation: ln p, and whether greedy decoding would say it."""
    ask = {"prompt": context + rest, "max_tokens": 0, "echo": True, "logprobs": 1}
    request = urllib.request.Request(URL + "/v1/completions", json.dumps(ask).encode(), {"Content-Type": "application/json"})
    lists = json.load(urllib.request.urlopen(request))["choices"][0]["logprobs"]
    at = next(i for i, o in enumerate(lists["text_offset"]) if o >= len(context.rstrip()))
    return sum(lists["token_logprobs"][at:])


@client("lm_eval")
def lm_eval():
    from lm_eval.api.instance import Instance
    from lm_eval.models.openai_completions import LocalCompletionsAPI

    lm = LocalCompletionsAPI(model="octet", base_url=URL + "/v1/completions", tokenizer_backend="remote",
                             custom_prefix_token_id=3, max_retries=1)
    check("is there", lm is not None)
    pairs = [("The history of", " the city"), ("Once upon a", " time")]
    asks = [Instance("loglikelihood", {}, p, i) for i, p in enumerate(pairs)]
    for (context, rest), (got, _) in zip(pairs, lm.loglikelihood(asks)):
        check(f"loglikelihood of {rest!r}", abs(got - sum_of_logprobs(context, rest)) < 1e-3, got)


@client("aider")
def aider():
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "aider", "--model", "openai/octet", "--message", "Say hello.", "--no-git",
                   "--yes-always", "--no-check-update", "--analytics-disable", "--no-show-model-warnings",
                   "--no-pretty", "--edit-format", "ask", "--map-tokens", "0", "--no-gitignore"]
        env = {**os.environ, "OPENAI_API_BASE": URL + "/v1", "OPENAI_API_KEY": "any", "HOME": folder,
               "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
        done = subprocess.run(command, cwd=folder, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                              timeout=300)
        said = done.stdout + done.stderr
        check("ends", done.returncode == 0, said)
        check("counts what it got", "tokens: " in said.lower() and "litellm." not in said, said)


print(f"clients: {len(ran)} ran, not installed: {', '.join(skipped) or 'none'}")
sys.exit(1 if failed else 0 if ran else 77)
