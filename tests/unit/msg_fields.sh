#!/bin/sh
# Each field of each message in src/wire/msg.h stands in the table of msg.c, in order: a field that
# is missing there is lost on the way, and no compiler says so.
set -u
dir=${GFS_SRC:-.}/src/wire
tmp=$(mktemp -d) || exit 99
trap 'rm -rf "$tmp"' EXIT

# "msg_x field" a line, as declared.
tr '\n' ' ' <"$dir/msg.h" | sed 's|/\*[^*]*\*\+\([^/*][^*]*\*\+\)*/| |g' |
    grep -o 'struct msg_[a-z_]* {[^}]*}' | awk '{
        name = $2
        sub(/^[^{]*{/, ""); sub(/}$/, "")
        count = split($0, parts, ";")
        for (i = 1; i <= count; i++) {
            decl = parts[i]
            sub(/^ *(struct +)?[a-z0-9_]+ +/, "", decl)
            n = split(decl, fields, ",")
            for (k = 1; k <= n; k++) {
                gsub(/\[.*\]| /, "", fields[k])
                if (fields[k] != "") print name, fields[k]
            }
        }
    }' >"$tmp/declared"

# As the table has them.
sed -n '/_fields\[\] = {/,/^};/p' "$dir/msg.c" | grep -o '(msg_[a-z_]*, [a-z0-9_]*)' |
    tr -d '(),' >"$tmp/table"

echo 1..2
if [ "$(wc -l <"$tmp/declared")" -gt 100 ]; then
    echo "ok 1 - the fields of messages were found"
else
    echo "not ok 1 - the fields of messages were found"
fi
sort -s -k1,1 "$tmp/declared" >"$tmp/a"
sort -s -k1,1 "$tmp/table" >"$tmp/b"
if diff "$tmp/a" "$tmp/b" >"$tmp/diff"; then
    echo "ok 2 - each field of each message stands in the table, in order"
else
    echo "not ok 2 - each field of each message stands in the table, in order"
    sed 's/^/# /' "$tmp/diff"
    exit 1
fi
