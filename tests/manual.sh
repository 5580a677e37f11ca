#!/bin/bash
# Manual pages and completions, as they were made with the program: mandoc has nothing to say, no option
# is missing, and shells really complete: bash, and zsh and fish where they are.
set -u
octet="$OCT_TEST_OCTET" share="$OCT_TEST_BUILD/share"
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
failures=0

fail()
{
    echo "manual: FAILED: $*"
    failures=$((failures + 1))
}
[ -f "$share/man/man1/octet.1" ] || { echo "manual: SKIPPED: not made here"; exit 77; }
commands=$("$octet" --help | awk '/^commands:/ { on = 1; next } /^$/ { on = 0 } on { print $1 }')

# ---- pages -----------------------------------------------------------------------------------------
pages=("$share"/man/man1/*.1)
[ "${#pages[@]}" = $(($(wc -w <<<"$commands") + 1)) ] || fail "pages: ${pages[*]}"
for page in "${pages[@]}"; do
    for name in $(awk '$1 == ".Xr" { print $2 }' "$page"); do
        [ -f "$share/man/man1/$name.1" ] || fail "$page names $name, which has no page"
    done
done
for c in $commands; do
    page="$share/man/man1/octet-$c.1"
    "$octet" man "$c" | cmp -s - "$page" || fail "octet man $c is not $page"
    options=$("$octet" "$c" --help | awk '/^options:/ { on = 1 } /^$/ { on = 0 } on' |
        grep -oE '^  (-[a-zA-Z], |    )--[a-z0-9-]+' | grep -oE -- '--[a-z0-9-]+')
    for option in $options; do
        grep -qF "Fl \\-${option#--}" "$page" || fail "$c: $option is not in the manual"
        for shell in bash-completion/completions/octet zsh/site-functions/_octet; do
            grep -qF -- "$option" "$share/$shell" || fail "$c: $option is not in $shell"
        done
    done
    [ "$(wc -w <<<"$options")" = "$(grep -c '^\.It Fl' "$page")" ] || fail "$c: options of manual and help"
done
if command -v mandoc >/dev/null; then
    mandoc -Tlint "${pages[@]}" >"$tmp/lint" 2>&1
    grep -v 'referenced manual not found: Xr octet' "$tmp/lint" && fail "mandoc -Tlint"
    mandoc -Tutf8 "$share/man/man1/octet-run.1" | sed 's/.\x08//g' >"$tmp/run"
    grep -q -- '--logprobs N' "$tmp/run" || fail "mandoc shows no --logprobs N"
else
    echo "manual: SKIPPED mandoc -Tlint: no mandoc"
fi
"$octet" man nothing >/dev/null 2>&1
[ $? = 2 ] || fail "octet man nothing: exit code"
"$octet" man -o /nowhere >/dev/null 2>&1
[ $? = 1 ] || fail "octet man -o /nowhere: exit code"
"$octet" completion tcsh >/dev/null 2>&1
[ $? = 2 ] || fail "octet completion tcsh: exit code"

# ---- bash ------------------------------------------------------------------------------------------
cd "$tmp" || exit 1
mkdir -p 'a folder' bin
touch 'a model.gguf' 'a folder/x'
ln -s "$octet" bin/octet
bash_words()
{
    (
        # shellcheck disable=SC1091
        . "$share/bash-completion/completions/octet"
        COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
        _octet 2>&1
        printf '%s\n' "${COMPREPLY[@]}"
    )
}
# completes EXPECTED WORD ...: to one a line, in any order
completes()
{
    local expected="$1" found
    shift
    found=$(bash_words "$@" | sort | tr '\n' '|')
    [ "$found" = "$expected" ] || fail "bash completes '$*' to '$found', expected '$expected'"
}
completes 'run|' octet ru
completes '--help|--version|' octet --
completes 'bf16|f16|f32|' octet run --kv ''
completes 'bf16|' octet run --kv b
completes 'bf16|' octet run --kv = b
completes 'bf16|f16|f32|' octet run --kv =
completes '--json|' octet run --js
completes '--top-k|--top-p|' octet run -m x --top
completes 'a folder|a model.gguf|' octet run -m 'a '
completes 'a folder|a model.gguf|' octet run --model = 'a '
completes '|' octet run --temp ''
completes 'a folder|a model.gguf|' octet info a
completes 'grok-1|' octet plan g
completes 'bash|fish|zsh|' octet completion ''
completes 'plan|ppl|' octet help p
completes '|' octet run -p a
completes '|' octet nothing x
# By keys: a name, an option, a value, a file that has a blank.
if command -v script >/dev/null; then
    cat >rc <<END
PATH=$tmp/bin:\$PATH
PS1='\$ '
. "$share/bash-completion/completions/octet"
END
    (sleep 1; printf 'octet tok\t--js\t-m a\\ mo\t-p x\n'; sleep 1; printf 'exit\n'; sleep 0.3) |
        TERM=xterm timeout 60 script -qec "bash --rcfile rc -i" /dev/null >out 2>&1
    tr -d '\007\r' <out | grep -qF 'octet tokenize --json -m a\ model.gguf -p x' || fail "bash, by keys: $(cat out)"
fi

# ---- fish, zsh -------------------------------------------------------------------------------------
if command -v fish >/dev/null; then
    fish_completes()
    {
        local found
        found=$(HOME=$tmp fish --no-config -c "source '$share/fish/vendor_completions.d/octet.fish'; complete -C '$2'" |
            cut -f 1 | sort | tr '\n' '|')
        [ "$found" = "$1" ] || fail "fish completes '$2' to '$found', expected '$1'"
    }
    fish_completes 'run|' 'octet ru'
    fish_completes 'bf16|' 'octet run --kv b'
    fish_completes '--kv=bf16|' 'octet run --kv=b'
    fish_completes '--json|' 'octet run --js'
    fish_completes 'a folder/|a model.gguf|' 'octet run -m a'
    fish_completes 'bash|fish|zsh|' 'octet completion '
else
    echo "manual: SKIPPED fish: it is not here"
fi
if command -v zsh >/dev/null && command -v script >/dev/null; then
    cat >.zshrc <<END
PATH=$tmp/bin:\$PATH
PS1='%% '
fpath=($share/zsh/site-functions \$fpath)
autoload -Uz compinit && compinit -u -D
END
    (sleep 2; printf 'octet tok\t--js\t-m a\\ mo\t-p x\n'; sleep 1; printf 'octet run --kv b\t--dry\t\n'; sleep 1
        printf 'exit\n'; sleep 0.3) |
        ZDOTDIR=$tmp HOME=$tmp TERM=dumb timeout 60 script -qec "zsh -o noglobalrcs -i" /dev/null >out 2>&1
    tr -d '\007\r' <out >shown
    # zsh draws what it adds over what was typed; the commands show what it came to.
    grep -qF 'octet: a model.gguf' shown || fail "zsh, by keys: $(cat -v shown)"
    grep -qF 'octet: run: -m MODEL is missing' shown || fail "zsh, a value by keys: $(cat -v shown)"
else
    echo "manual: SKIPPED zsh: it is not here"
fi

# The page about serving names every path, and only options that there are.
doc=$OCT_TEST_SOURCE/examples/serving.md
for path in $(sed -n 's/^    {"\(\/[^"]*\)", .*/\1/p' "$OCT_TEST_SOURCE/examples/octet/serve/serve_routes.c"); do
    grep -qE "(GET|POST|,) ?\`?(GET |POST )?$path[\`,]" "$doc" || fail "serving.md lacks $path"
done
for option in $(grep -oE -- '`--[a-z-]+' "$doc" | tr -d '`' | sort -u); do
    "$OCT_TEST_OCTET" serve --help | grep -q -- "$option" || [ "$option" = --verify ] || fail "serving.md has $option"
done

[ $failures = 0 ] && echo "manual: ${#pages[@]} pages, completions"
[ $failures = 0 ]
