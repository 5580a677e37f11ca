# install_rig.sh: sourced by the scripts that install. $tmp is a folder of the test's own; the list of the user's
# own installation, which an installation of the test replaces, comes back at the end.
tmp=$(mktemp -d)
manifest=$OCT_TEST_BUILD/install_manifest.txt
[ ! -f "$manifest" ] || cp "$manifest" "$tmp/manifest"
clean_up()
{
    if [ -f "$tmp/manifest" ]; then
        cp "$tmp/manifest" "$manifest"
    else
        rm -f "$manifest"
    fi
    rm -rf "$tmp"
}
trap clean_up EXIT
