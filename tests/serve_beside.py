#!/usr/bin/env python3
"""Decoding speed of servers side by side: serve_beside.py NAME=HOST:PORT ... [options]

For each number of streams, each round asks each server in turn for so many completions at once, of
random prompts of ids. tokens/s are counted from the moment when all streams have begun until the
first of them ends. Printed: median (least..greatest) over the rounds. Servers that are called
"octet..." are asked for log-probabilities, so that a model without tokenizer sends events too."""
import argparse
import asyncio
import json
import random
import statistics
import time


async def stream(name, host, port, ids, n, seed, times):
    """Appends the time of each token's event to times."""
    ask = {"prompt": ids, "max_tokens": n, "stream": True, "temperature": 1, "top_p": 1,
           "seed": seed, "ignore_eos": True, "model": "any"}
    # what llama.cpp and its kin need beyond OpenAI's fields; octet is given what it knows
    ask.update({"logprobs": 0} if name.startswith("octet") else {"cache_prompt": False})
    body = json.dumps(ask).encode()
    reader, writer = await asyncio.open_connection(host, port)
    head = (f"POST /v1/completions HTTP/1.1\r\nHost: {host}:{port}\r\nConnection: close\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n")
    writer.write(head.encode())
    writer.write(body)
    await writer.drain()
    if b" 200 " not in await reader.readline():
        raise SystemExit(f"{name}: {(await reader.read(2000)).decode(errors='replace')}")
    async for line in reader:
        if line.startswith(b"data: [DONE]"):
            break
        if line.startswith(b"data: "):
            choices = json.loads(line[6:]).get("choices")
            if choices and not choices[0].get("finish_reason"):
                times.append(time.monotonic())
    writer.close()


async def measure(server, n_streams, args, rnd):
    name, host, port = server
    times = [[] for _ in range(n_streams)]
    prompts = [[rnd.randrange(3, args.vocab) for _ in range(args.prompt)] for _ in times]
    await asyncio.wait_for(asyncio.gather(*(
        stream(name, host, port, ids, args.tokens, i, t)
        for i, (ids, t) in enumerate(zip(prompts, times)))), args.timeout)
    if any(len(t) < 4 for t in times):
        raise SystemExit(f"{name}: a stream has {min(map(len, times))} events, expected 4 or more")
    begin, end = max(t[0] for t in times), min(t[-1] for t in times)
    if end <= begin:
        raise SystemExit(f"{name}: streams do not overlap, more --tokens are needed")
    return sum(begin < x <= end for t in times for x in t) / (end - begin)


async def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("servers", nargs="+", metavar="NAME=HOST:PORT")
    p.add_argument("--streams", default="1,4,16,32")
    p.add_argument("--tokens", type=int, default=16, help="of each completion")
    p.add_argument("--prompt", type=int, default=4, help="ids of each prompt")
    p.add_argument("--vocab", type=int, default=4096, help="ids are below")
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--timeout", type=float, default=120, help="seconds for a round of a server")
    args = p.parse_args()
    servers = []
    for s in args.servers:
        name, _, at = s.partition("=")
        host, _, port = at.rpartition(":")
        servers.append((name, host, int(port)))
    for n in map(int, args.streams.split(",")):
        rates = {s[0]: [] for s in servers}
        for k in range(args.rounds):
            for s in servers:
                rates[s[0]].append(await measure(s, n, args, random.Random(1000 * n + k)))
        print(f"{n:3}", *(f"{name} {statistics.median(r):.2f} ({min(r):.2f}..{max(r):.2f})"
                          for name, r in rates.items()), sep="  ", flush=True)


asyncio.run(main())
