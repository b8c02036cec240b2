#!/usr/bin/env bash
# What a user, a script or a broken disk may do to a run: garbage, signals at the wrong moment, damaged files, a full table of
# descriptors. Each must end in a clear error or in nothing at all.
# What `sh -c` runs is expanded there.
# shellcheck disable=SC2016
. "${GFS_SRC:?is set by make check}/tests/e2e/lib.sh" || exit 1

[ -x "$GFS_BUILD/gatherfs-mountd" ] || skip_all "built without FUSE"
[ -c /dev/fuse ] || skip_all "there is no /dev/fuse"
if [ "$(id -u)" != 0 ] && ! command -v fusermount3 >/dev/null; then skip_all "fusermount3 is not there"; fi

ranks=2
[ "${GFS_MPI_NAME:-openmpi}" != none ] || ranks=1
for i in $(seq 400); do echo "$i bottles of beer on the wall, $i bottles of beer"; done >text
tiny=(--model gpt2:tiny --data text --ranks "$ranks" --global-batch 4 --seq-len 32 --set threads=1)
weight=params/transformer.h.0.attn.c_attn.weight.npy

start_mounted() { # MNT OPTION...
    local mnt=$1
    shift
    timeout 120 "$gatherfs" run "$@" "$mnt" >run.out 2>&1 &
    run_pid=$!
    until_ok 40 is_up_or_over "$mnt.run"
}
value() { cat "$1/status/$2"; }
value_is() { [ "$(value "$1" "$2")" = "$3" ]; }
run_ends() { wait $run_pid; status=$?; [ $status = "$1" ] || { echo "ended with $status, not $1"; return 1; }; }
mountd() { pgrep -P "$(cat mnt.run/lock)" gatherfs-mountd; }

start_mounted mnt "${tiny[@]}" --steps 100000 --paused

# ---- garbage in control files
cat >garbage.py <<'END'
import errno, os, sys

NAMES = (b"nan", b"9" * 40)  # they are names, though of nothing
values = [b"\n", b"1\n2", b"1\0", b"x" * 1000000, b"\x80" * 200, b"-1", b"1 a b", b"1 " + b"i" * 65, "1 \u00fcn\u00ef".encode(),
          b"\xff\xfe", b"1 \xff", b"1\r\n", b"\x1b[31m", b"../x", b"a" * 101, "\u00e4".encode() * 400, *NAMES]
for name in os.listdir("mnt/control"):
    for value in values:
        if value in NAMES and name in ("snapshot", "pin", "restore"):
            continue
        fd = os.open("mnt/control/" + name, os.O_WRONLY)
        try:
            os.write(fd, value)
            sys.exit(f"{name} takes {value[:30]!r}")
        except OSError as e:
            if e.errno not in (errno.EINVAL, errno.ERANGE):
                sys.exit(f"{name} {value[:30]!r}: {e}")
        finally:
            os.close(fd)
        text = open("mnt/status/last_error", "rb").read()
        if text.count(b"\n") != 1 or not text.decode().strip("\n").isprintable():
            sys.exit(f"{name} {value[:30]!r}: last_error is {text!r}")
END
ok "garbage in a control file is refused, in one line that can be printed" python3 garbage.py
ok "... and changes nothing" value_is mnt step 0
ok "... nor do names that can't be" sh -c '! mkdir "mnt/pins/a b" && ! mkdir mnt/pins/.x && ! mkdir "mnt/pins/$(printf %0101d 0)" &&
    mkdir "mnt/pins/$(printf %0100d 0)" && rmdir mnt/pins/0*'

# ---- who waits in a control file gets a signal
cat >write.py <<'END'
import ctypes, os, signal, sys

libc = ctypes.CDLL(None, use_errno=True)  # Python itself would write again
signal.signal(signal.SIGWINCH, lambda *_: None)
fd = os.open("mnt/control/step", os.O_WRONLY)
line = sys.argv[1].encode()
print("waits", flush=True)
sys.exit(0 if libc.write(fd, line, len(line)) == len(line) else ctypes.get_errno())
END
goes_on() { # SIGNAL STATUS: the writer ends with it, and the command is done once
    local step writer status
    step=$(value mnt step)
    : >write.out
    python3 write.py "150 goes-on-$1" >write.out &
    writer=$!
    until_ok 10 grep -q waits write.out && until_ok 10 grep -q "goes-on-$1" mnt/status/commands.tsv || return 1
    kill "-$1" $writer
    [ "$1" != STOP ] || { sleep 0.1 && kill -CONT $writer; }
    wait $writer
    status=$?
    [ $status = "$2" ] || { echo "the writer ended with $status"; return 1; }
    echo "150 goes-on-$1" >mnt/control/step && value_is mnt step $((step + 150))
}
ok "a resized terminal releases the writer; the command goes on, once" goes_on WINCH 4
ok "so do STOP and CONT" goes_on STOP 4
ok "so does TERM" goes_on TERM 143
ok "so does KILL" goes_on KILL 137

many() { # ID...: 60 writers at once; the steps that were made
    local step i pids=()
    step=$(value mnt step)
    for i in $(seq 60); do
        echo "2 ${1:-other-$i}" >mnt/control/step &
        pids+=($!)
    done
    for i in "${pids[@]}"; do wait "$i" || return 1; done
    made=$(($(value mnt step) - step))
}
once() { many "the-same" && [ "$made" = 2 ]; }
ok "60 writers of one id make its steps once" once
each() { many && [ "$made" -ge 2 ] && [ "$made" -le 120 ]; }
ok "60 writers of different ids all get an answer" each

# ---- mapped files over the death of the daemon
echo kept >mnt/control/snapshot
mkdir mnt/pins/kept
cat >mapped.py <<'END'
import mmap, os, signal, sys, time

names = ["live/", "pins/kept/", "snapshots/kept/"]
held = {n: os.open(f"mnt/{n}{sys.argv[2]}", os.O_RDONLY) for n in names}
maps = {n: mmap.mmap(f, 0, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ) for n, f in held.items()}
os.kill(int(sys.argv[1]), signal.SIGKILL)
time.sleep(0.3)
for n in names[1:]:
    # Page by page for the first time, from the daemon that came after.
    whole, again = maps[n][:], open(f"mnt/{n}{sys.argv[2]}", "rb").read()
    assert whole == again and len(whole) == os.fstat(held[n]).st_size, n
try:
    os.getxattr(held["live/"], "user.version")
    sys.exit("an open file of live/ has a version after the death of the daemon")
except OSError as e:
    assert e.errno == 5, e
open("mnt/live/" + sys.argv[2], "rb").read()
END
ok "maps of pins and snapshots survive the daemon" sh -c "timeout 20 python3 mapped.py $(mountd) $weight"
cat >removed.py <<'END'
import os, sys, time

for name in "pins", "snapshots":
    with open(f"mnt/{name}/kept/model.safetensors", "rb") as f:
        half = f.read(4096)
        os.rmdir(f"mnt/{name}/kept")
        time.sleep(0.2)
        os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)  # what the kernel has read ahead is no proof
        size = os.fstat(f.fileno()).st_size
        assert len(half + f.read()) == size and not os.path.exists(f"mnt/{name}/kept"), name
END
ok "an open file of a removed pin or snapshot goes on" timeout 20 python3 removed.py
echo kept >mnt/control/snapshot
mkdir mnt/pins/kept
ls -lR mnt/pins mnt/snapshots >/dev/null
kill -9 "$(mountd)"
ok "... also of names that a dead daemon had looked up" timeout 20 python3 removed.py
ok "nothing in the mount can be changed" sh -c "
    for what in live snapshots ranks status; do
        ! touch mnt/\$what/new && ! mkdir mnt/\$what/new && ! ln -s x mnt/\$what/new || exit 1
    done 2>/dev/null
    for file in live/$weight status/step README; do
        ! chmod 600 mnt/\$file && ! rm -f mnt/\$file && ! mv mnt/\$file mnt/x && ! ln mnt/\$file mnt/x &&
            ! truncate -s 0 mnt/\$file && ! (echo x >>mnt/\$file) || exit 1
    done 2>/dev/null"

# ---- one wish, told twice
kill -INT "$(cat mnt.run/lock)"
sleep 0.02
kill -INT "$(cat mnt.run/lock)"
ok "a signal that comes twice at once is one Ctrl-C" run_ends 0

# ---- the socket
lock_is_free_after_stop() {
    local i
    for i in 1 2 3; do
        start sock "${tiny[@]}" --steps 100000 --paused
        if ! "$gatherfs" stop sock || ! flock -n sock/lock true; then
            echo "stop $i returned while the lock is held"
            return 1
        fi
    done
}
ok "gatherfs stop returns when the directory is free" lock_is_free_after_stop
cat >peers.py <<'END'
import os, socket, struct, sys, time

def connect():
    s = socket.socket(socket.AF_UNIX)
    s.connect("sock/socket")  # waits while the queue is full
    s.settimeout(5)
    return s

def header(kind, length, fds=0, version=1):
    return struct.pack("<BBHIQ", version, fds, kind, length, 0)

if sys.argv[1] == "garbage":
    hello = header(192, 64) + b"x" * 64
    for data in [os.urandom(5000), header(1, 0xFFFFFFFF), header(192, 0, 255), header(192, 0, 3), header(1, 10, 0, 9),
                 hello + header(193, 200) + os.urandom(200)]:
        s = connect()
        try:
            s.sendall(data)
            while s.recv(65536):
                pass
        except ConnectionError:
            pass
    for kind in [*range(20), *range(64, 84), 191, 192, 193, 194, 65535]:
        for length in 0, 1, 7, 8, 76, 77, 4000:
            s = connect()
            try:
                s.sendall(header(kind, length) + os.urandom(length))
            except ConnectionError:
                pass
            s.close()
else:
    held = []
    for _ in range(128 + 100):  # who is let in, and the queue of the socket
        held.append(connect())
    half = header(192, 100)[:9]
    held[0].sendall(half)
    print("held", flush=True)
    time.sleep(4)
END
(ulimit -n 200 && exec timeout 120 "$gatherfs" run --no-mount --run-dir sock "${tiny[@]}" --paused) >run.out 2>&1 &
run_pid=$!
until_ok 30 is_up_or_over sock
ok "garbage on the socket ends the connection only" timeout 20 python3 peers.py garbage
ok "... the run is not disturbed" state_is sock paused
python3 peers.py hold >hold.out &
holder=$!
ok "more than a hundred connections are held" until_ok 10 grep -q held hold.out
ticks() { sed 's/.*) //' "/proc/$(cat sock/lock)/stat" | awk '{ print $12 + $13 }'; }
is_calm() { local before; before=$(ticks) && sleep 2 && echo "$(($(ticks) - before)) ticks in 2 s" && [ $(($(ticks) - before)) -le 10 ]; }
ok "... which cost nothing" is_calm
ok "... and nobody who says no word is kept" kill $holder
ok "... a snapshot can be written" "$gatherfs" command sock snapshot after
kill -INT "$(cat sock/lock)"
ok "... the end is a good one" run_ends 0

# ---- damaged files
starts_with() { # PATTERN: the run does not start, and says so in words that can be printed
    timeout 60 "$gatherfs" run --no-mount --run-dir damaged --paused --steps 100000 >run.out 2>&1 && return 1
    ! grep -naP '[^\x09\x0a\x20-\x7e]' run.out && said "$1"
}
copy() { rm -rf damaged && cp -a sock damaged; }
copy && printf '\xff\xfe\x1b[1m\n' >damaged/config
ok "a config of garbage is named" starts_with "damaged/config:1: "
copy && : >damaged/fingerprint
ok "an empty fingerprint is called damaged" starts_with "damaged/fingerprint is damaged"
copy && head -c 300 /dev/urandom >damaged/fingerprint
ok "... so is one of garbage" starts_with "damaged/fingerprint"
copy && echo '{' >damaged/model.json
ok "a model.json that is cut off is named" starts_with "damaged/model.json: "
copy && sed -i 's/^wrap = .*/wrap = bl/' damaged/config
ok "a wrong value in config is placed" starts_with "damaged/config: wrap = bl"

# ---- a run that has failed
start_mounted fail "${tiny[@]}" --steps 100000 --paused --stay
fails() {
    local i
    for i in 1 2 3 4; do
        until_ok 20 value_is fail attempt $i && until_ok 20 value_is fail state paused || return 1
        kill -9 "$(cat fail/ranks/0/pid)"
    done
    until_ok 20 value_is fail state failed
}
ok "four deaths without a snapshot are a failure" fails
ok "... which a command gets as EIO" refused EIO fail step 1
ok "... with the reason, however often" sh -c "! '$gatherfs' command fail step 1 2>&1 | grep -q 'has failed.*has failed'"
ok "... and the mount stays until it is told" "$gatherfs" stop fail
ok "... the status is that of a failure" run_ends 1
