# shellcheck shell=bash
# setup.sh - what tools/check and tools/quickstart both need: packages, /dev/fuse, configure. To be sourced, from the
# top of the tree. The caller defines say, step and fail (what, log).

packages_of() { # group...
    local group
    for group in "$@"; do awk -v g="$group" '$1 == g { print $2 }' tools/packages; done
}

is_installed() {
    [ "$(dpkg-query -W -f='${db:Status-Status}' "$1" 2>/dev/null)" = installed ]
}

# Installs what is missing of the groups of tools/packages; says so and goes on where nothing can be installed.
install_packages() { # group...
    local missing=() sudo=() p
    if ! command -v apt-get >/dev/null; then
        say "packages: no apt-get here, nothing installed; needed are those of tools/packages"
        return 0
    fi
    for p in $(packages_of "$@"); do is_installed "$p" || missing+=("$p"); done
    [ ${#missing[@]} -gt 0 ] || return 0
    if [ "$(id -u)" != 0 ]; then
        if ! command -v sudo >/dev/null; then
            say "packages: neither root nor sudo, not installed: ${missing[*]}"
            return 0
        fi
        sudo=(sudo)
    fi
    say "packages: installing ${missing[*]}"
    local apt=("${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq
        -o DPkg::Lock::Timeout=300 -o Acquire::Retries=3)
    mkdir -p build
    if ! { "${apt[@]}" update &&
        "${apt[@]}" install -y --no-install-recommends "${missing[@]}"; } >build/packages.log 2>&1; then
        fail "installing packages" build/packages.log
        return 1
    fi
}

# Can anything be mounted here? If not: why not, and the fix, in one line.
no_mount=
find_fuse() {
    local fix='modprobe fuse'
    [ -e /dev/fuse ] || ! grep -qsw fuse /proc/filesystems || fix='mknod -m 666 /dev/fuse c 10 229'
    if [ -e /.dockerenv ] || [ -e /run/.containerenv ]; then
        fix='docker run --device /dev/fuse --cap-add SYS_ADMIN'
    fi
    if ! { [ -c /dev/fuse ] && : <>/dev/fuse; } 2>/dev/null; then
        no_mount="/dev/fuse cannot be opened"
    elif [ "$(id -u)" = 0 ]; then
        unshare -m --propagation unchanged true 2>/dev/null ||
            no_mount="root may not mount here" fix='docker run --device /dev/fuse --cap-add SYS_ADMIN'
    elif ! command -v fusermount3 >/dev/null; then
        no_mount="fusermount3 is not there" fix='apt-get install fuse3'
    fi
    [ -z "$no_mount" ] || say "no mount here: $no_mount; fix: $fix"
}

make_configure() {
    local f
    while IFS= read -r f; do
        [ configure -nt "$f" ] && [ Makefile.in -nt "$f" ] && continue
        step "autogen.sh"
        mkdir -p build
        ./autogen.sh >build/autogen.log 2>&1 || { fail "autogen.sh" build/autogen.log; return 1; }
        return 0
    done < <(find configure.ac Makefile.am m4 src fsmount tools man doc completions tests \
        -name '*.mk' -o -name '*.m4' -o -name '*.a[cm]')
}
