# serve_wait.sh: to be sourced.
# wait_for_server LOG TENTHS: until the server that writes LOG is ready, for so many tenths of a second; its
# address is in $url, empty if it has not said one.
wait_for_server()
{
    for _ in $(seq "$2"); do
        url=$(sed -n 's/^listening at //p' "$1")
        [ -n "$url" ] && curl -s "$url/health" | grep -q '"ok"' && break
        sleep 0.1
    done
}
