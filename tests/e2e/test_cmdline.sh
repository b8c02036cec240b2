#!/usr/bin/env bash
# The command line: usage, suggestions, help, and the completion that must know every option.
. "${GFS_SRC:?is set by make check}/tests/e2e/lib.sh" || exit 1

exits() { # STATUS PATTERN ARGUMENT...
    local status=$1 pattern=$2 got text
    shift 2
    text=$(timeout 20 "$gatherfs" "$@" 2>&1)
    got=$?
    echo "$text"
    [ $got = "$status" ] || { echo "exit $got"; return 1; }
    grep -Eq -- "$pattern" <<<"$text"
}
echo text >data

ok "without a command the help is shown, exit 2" exits 2 "usage: gatherfs COMMAND"
ok "--help exits 0" exits 0 "usage: gatherfs COMMAND" --help
ok "--version says the MPI" exits 0 "gatherfs [0-9.]+ \(MPI: " --version
ok "a misspelt command is suggested" exits 2 "did you mean run\?" rnu
ok "a misspelt option is suggested" exits 2 "did you mean --ranks\?" run --rank 2 mnt
ok "an option in the spelling of knobs is suggested" exits 2 "did you mean --seq-len\?" run --seq_len 8 mnt
ok "a knob without option names --set" exits 2 "use --set beta1=VALUE" run --beta1 0.5 mnt
ok "a misspelt knob is suggested" exits 2 "did you mean 'weight_decay'" run --set weigth_decay=1 mnt
ok "a value out of range says what was expected" exits 2 "ranks = 4097: expected a whole number from 0 to 4096" run --ranks 4097 mnt
ok "a missing value is named" exits 2 "--ranks needs a value" run mnt --ranks
ok "a missing mountpoint is named" exits 2 "where to mount is missing" run --data data
ok "data that is not there is named" exits 1 "data: nowhere: No such file" run --data nowhere mnt
ok "without data it says how to give it" exits 1 "give --data PATH" run --no-mount --run-dir dir
ok "a directory that is no run directory is left alone" exits 1 "is no run directory, and not empty" \
    run --no-mount --data data --run-dir "$work"
mkdir mnt
ok "the run directory may not lie in the mount" exits 2 "can't lie in the mount" run --run-dir mnt/run mnt
printf 'lr = 1\nstpes = 3\n' >file
ok "a bad config file names the line" exits 2 "file:2: there is no knob 'stpes'; did you mean 'steps'" \
    run --config file mnt
printf '# comment\nseed = 3\n\nranks = x\n' >file
ok "a bad value in a config file names the line" exits 2 "file:4: ranks = x" run --config file mnt
for command in run stop status command mount ckpt plan devices; do
    ok "$command --help exits 0" exits 0 "usage: gatherfs $command" $command --help
done
ok "stop without a run says so" exits 1 "is a run directory" stop nothing
ok "plan refuses settings that do not fit" exits 2 "reduce_dtype = bf16, and dtype = f32: expected f32" \
    plan --reduce-dtype bf16
# What a machine has is not for a test to say: GPUs in order, or one line of reason.
lists_devices() {
    local text status
    text=$(timeout 60 "$gatherfs" devices)
    status=$?
    echo "$text"
    if [ $status = 0 ]; then
        awk '!/ [0-9]+ bytes$/ || $1 != NR - 1 { exit 1 } END { exit NR == 0 }' <<<"$text"
    else
        [ $status = 1 ] && [ "$(wc -l <<<"$text")" = 1 ] && grep -q '^no GPU: .' <<<"$text"
    fi
}
ok "devices lists the GPUs, or says why there is none" lists_devices
ok "devices has no options" exits 2 "usage: gatherfs-rank --devices" devices --all
ok "wrap is checked at the start" exits 1 "wrap|size" run --no-mount --data data --run-dir w --wrap size:x

every_option_is_completed() {
    local option missing=0
    for option in $("$gatherfs" --list-options) $("$gatherfs" --list-commands); do
        grep -Eq -- "(^|[ '\"(])$option([ '\")]|\$)" "$GFS_SRC/completions/gatherfs" || { echo "$option"; missing=1; }
    done
    return $missing
}
ok "the completion knows every command and option" every_option_is_completed

completes() { # WORD... EXPECTED
    local expected=${*: -1}
    bash -c '. "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _gatherfs; printf "%s\n" "${COMPREPLY[@]}"' \
        - "$GFS_SRC/completions/gatherfs" "${@:1:$#-1}" | tee command.words
    grep -qxF -- "$expected" command.words
}
ok "a command is completed" completes gatherfs ru run
ok "an option is completed" completes gatherfs run --ra --ranks
ok "a choice is completed" completes gatherfs run --comm no node
ok "what offload may be is completed" completes gatherfs run --offload optimizer=h optimizer=host
