#!/usr/bin/env bash
# What people use against `octet serve`: serve_real.sh clients | page. The first wants a Python that has some
# of them (OCT_TEST_PYTHON, else python3), the second Chromium and its driver.
set -u
here=$(dirname "$0")
work=$(mktemp -d)
trap 'kill $server 2>/dev/null; wait; rm -rf "$work"' EXIT
"$OCT_TEST_OCTET" serve -m "$OCT_TEST_MODELS/tiny-grok.gguf" --template plain --port 0 -t 1 2>"$work/log" &
server=$!
. "$here/serve_wait.sh"
wait_for_server "$work/log" 300
[ -n "$url" ] || { echo "FAILED: the server does not listen"; cat "$work/log"; exit 1; }
case $1 in
clients) "${OCT_TEST_PYTHON:-python3}" "$here/serve_clients.py" "$url" ;;
page) python3 "$here/serve_page.py" "$url" ${OCT_TEST_PICTURES:+"$OCT_TEST_PICTURES"} ;;
esac
