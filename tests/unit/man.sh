#!/usr/bin/env bash
# The man pages say what the tables say; the completion offers what they have; each program knows --help.
set -u
: "${GFS_BUILD:?is set by make check}" "${GFS_SRC:?is set by make check}"
man=$GFS_SRC/man
units=$GFS_BUILD/tests/unit
out=$(mktemp) || exit 99
trap 'rm -f "$out"' EXIT
tests=0 failures=0

# A test: its name, then a command that must succeed; what it prints explains a failure.
ok() {
    local name=$1
    shift
    tests=$((tests + 1))
    if "$@" >"$out" 2>&1; then
        echo "ok $tests - $name"
    else
        failures=$((failures + 1))
        sed 's/^/# /' "$out"
        echo "not ok $tests - $name"
    fi
}
skip() { tests=$((tests + 1)); echo "ok $tests - $1 # SKIP $2"; }

# ---- form

# Without the lines about a system's own index of pages.
lint_is_silent() { ! mandoc -T lint -W warning "$1" 2>/dev/null | grep .; }
for page in "$man"/*.[1-9]; do
    if command -v mandoc >/dev/null; then
        ok "mandoc has no warning for ${page##*/}" lint_is_silent "$page"
    else
        skip "mandoc has no warning for ${page##*/}" "no mandoc here"
    fi
done

# ---- knobs and options

# What the page says in brackets after the name of a knob.
range_of() { # type min max choices
    case $1 in
    bool) [ "$class" = once ] || echo ", 0 or 1" ;;
    choice) echo ", $4" ;;
    u64 | f64 | bytes)
        # Above 1e15 the most is no limit that anybody meets.
        if awk -v most="$3" 'BEGIN { exit !(most >= 1e15 && most < 1e20) }'; then
            echo ", from $2"
        else
            echo ", $2 to $3"
        fi ;;
    esac
}
knob_stands() { # name class type default min max choices
    local name=$1 class=$2 default="default $4" said
    [ -n "$4" ] || default="no default"
    said="($class, $default$(range_of "$3" "$5" "$6" "$7"))."
    grep -qxF -A1 -- ".Cm $name" "$man/gatherfs.1" || { echo "no line .Cm $name"; return 1; }
    grep -xF -A1 -- ".Cm $name" "$man/gatherfs.1" | grep -qxF -- "$said" ||
        { echo "after .Cm $name this should stand: $said"; return 1; }
}
# A device of builds for tests is nobody's choice.
while IFS='|' read -r name _ class type default min max choices; do
    choices=${choices%|emulated}
    ok "gatherfs.1 has the knob $name, its class, default and range" \
        knob_stands "$name" "$class" "$type" "$default" "$min" "$max" "$choices"
done < <("$units/print_knobs")

option_stands() { grep -Eq -- "^\.It Fl $1( |\$)" "$man/gatherfs.1" || { echo "no .It Fl $1"; return 1; }; }
for option in $("$GFS_BUILD/gatherfs" --list-options); do
    ok "gatherfs.1 has the option $option" option_stands "${option#-}"
done
for option in --background --allow-other; do
    ok "gatherfs.1 has the option $option of mount" grep -qxF -- ".Op Fl ${option#-}" "$man/gatherfs.1"
done
no_other_option() {
    local known
    known=$("$GFS_BUILD/gatherfs" --list-options)
    sed -n 's/^\.It Fl -\([a-z-]*\).*/--\1/p' "$man/gatherfs.1" | grep -vxF -- "$known" && return 1
    return 0
}
ok "gatherfs.1 has no option that is none" no_other_option
for command in $("$GFS_BUILD/gatherfs" --list-commands); do
    ok "gatherfs.1 has the command $command" grep -qxF -- ".Ss $command" "$man/gatherfs.1"
done

# ---- files of the mount

# As an item of the list of its section: SECTION FILE.
file_stands() {
    awk -v section="$1" -v file="$2" '
        /^\.Sh / { now = $2 }
        now == section && /^\.It Pa / {
            for (i = 3; i <= NF; i++)
                if ($i == file) found = 1
        }
        END { exit !found }' "$man/gatherfs-mount.5" || { echo "no .It Pa $2 in $1"; return 1; }
}
if [ -x "$units/print_mount_files" ]; then
    while IFS=/ read -r dir file; do
        ok "gatherfs-mount.5 has $dir/$file" file_stands "${dir^^}" "$file"
    done < <("$units/print_mount_files")
else
    skip "gatherfs-mount.5 has every file" "built without fuse"
fi

# ---- completion

offered() { # WORD...: what is offered for the last word
    bash -c '. "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _gatherfs; printf "%s\n" "${COMPREPLY[@]}"' \
        - "$GFS_SRC/completions/gatherfs" "$@"
}
same_lines() { diff <(sort -u <<<"$1") <(sort -u <<<"$2"); }
options_are_offered() { same_lines "$("$GFS_BUILD/gatherfs" --list-options)" "$(offered gatherfs run --)"; }
commands_are_offered() {
    same_lines "$("$GFS_BUILD/gatherfs" --list-commands)" "$(offered gatherfs '' | grep -v '^-')"
}
choices_are_offered() { # option choices
    same_lines "${2//|/$'\n'}" "$(offered gatherfs run "--$1" '')"
}
ok "the completion of run offers its options, and no others" options_are_offered
ok "the completion offers the commands, and no others" commands_are_offered
while IFS='|' read -r _ option _ type _ _ _ choices; do
    choices=${choices%|emulated}
    [ "$type" != choice ] || [ -z "$option" ] || ok "the completion offers the choices of --$option" choices_are_offered "$option" "$choices"
done < <("$units/print_knobs")

# ---- programs

answers() { # status program argument...
    local want=$1 got
    shift
    timeout 20 "$@" </dev/null
    got=$?
    [ $got = "$want" ] || { echo "status $got"; return 1; }
}
for program in gatherfs gatherfs-rank gatherfs-mountd; do
    [ -x "$GFS_BUILD/$program" ] || { skip "$program knows its options" "it is not built"; continue; }
    ok "$program refuses an option that it does not have" answers 2 "$GFS_BUILD/$program" --no-such-option
    for option in --help --version; do
        if [ $program = gatherfs-mountd ] && ! answers 0 "$GFS_BUILD/$program" $option >"$out" 2>&1; then
            skip "$program answers $option" "it takes a descriptor only"
        else
            ok "$program answers $option" answers 0 "$GFS_BUILD/$program" $option
        fi
    done
done

echo "1..$tests"
[ $failures = 0 ]
