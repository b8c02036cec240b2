#!/usr/bin/python3
"""Readers of live/ while a real run trains: what they see, and what they can't do to the training.

A reference run is stepped by hand, and the bytes of some tensors are kept for each step. An identical run then trains at full
speed under readers; each open must show the bytes of the step that it names."""

import hashlib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time

BUILD = os.environ["GFS_BUILD"]
GATHERFS = os.path.join(BUILD, "gatherfs")
DEVICE = os.environ.get("GFS_TEST_DEVICE", "")
STEPS, MORE_STEPS = (16, 8) if DEVICE else (60, 100)
SMALL_MODEL = """{"model_type": "gpt2", "vocab_size": 257, "n_positions": 32, "n_embd": 24, "n_layer": 4, "n_head": 3,
 "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}"""
TENSORS = [
    "live/params/transformer.wte.weight.npy",
    "live/params/transformer.h.0.attn.c_attn.weight.npy",
    "live/params/transformer.h.3.mlp.c_proj.weight.npy",
    "live/params/transformer.ln_f.bias.npy",
    "live/exp_avg/transformer.wpe.weight.npy",
    "live/exp_avg_sq/transformer.h.1.mlp.c_fc.bias.npy",
    "live/grads/transformer.h.2.attn.c_proj.weight.npy",
    "live/raw/params/transformer.h.1.ln_1.weight",
    "live/model.safetensors",
]
number = 0
failed = 0


def test(name, ok, detail=""):
    global number, failed
    number += 1
    failed += not ok
    print(f"{'ok' if ok else 'not ok'} {number} - {name}", flush=True)
    for line in str(detail).splitlines() if not ok else []:
        print(f"# {line}", flush=True)


class Run:
    """A real run with a mount, in a folder of its own; ended and unmounted when it is left."""

    def __init__(self, folder, name, *options):
        self.mnt = os.path.join(folder, name)
        self.out = open(self.mnt + ".out", "w")
        ranks = "1" if os.environ.get("GFS_MPI_NAME") == "none" else "2"
        model = "gpt2:tiny"
        if DEVICE:
            model = os.path.join(folder, "config.json")
            options = ("--device", DEVICE, "--dtype", "bf16", "--offload", "optimizer=host", *options)
        self.process = subprocess.Popen(
            [GATHERFS, "run", "--model", model, "--data", os.path.join(folder, "text"), "--ranks", ranks,
             "--global-batch", "4", "--seq-len", "32", "--set", "threads=1", "--steps", "100000", "--paused",
             *options, self.mnt],
            stdout=self.out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)

    def __enter__(self):
        deadline = time.monotonic() + 60
        while self.value("state") != "paused":
            if time.monotonic() > deadline or self.process.poll() is not None:
                raise RuntimeError("the run did not start: " + open(self.mnt + ".out").read())
            time.sleep(0.05)
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        if os.path.exists(self.mnt) and f" {self.mnt} " in open("/proc/self/mountinfo").read():
            subprocess.run(["umount", "-l", self.mnt], check=False)
        self.out.close()

    def path(self, name):
        return os.path.join(self.mnt, name)

    def value(self, name):
        try:
            with open(self.path("status/" + name)) as f:
                return f.read().strip()
        except OSError:
            return ""

    def command(self, name, value):
        fd = os.open(self.path("control/" + name), os.O_WRONLY)
        try:
            os.write(fd, str(value).encode())
        finally:
            os.close(fd)

    def read(self, name):
        """One open: its step, its version and the hash of its bytes; None where there is no content yet."""
        try:
            fd = os.open(self.path(name), os.O_RDONLY)
        except OSError as e:
            if e.errno == 61:  # ENODATA
                return None
            raise
        try:
            h = hashlib.sha256()
            size = 0
            while block := os.read(fd, 1 << 17):
                h.update(block)
                size += len(block)
            assert size == os.fstat(fd).st_size, f"{name}: {size} bytes read, {os.fstat(fd).st_size} promised"
            return int(os.getxattr(fd, "user.step")), os.getxattr(fd, "user.version").decode(), h.hexdigest()
        finally:
            os.close(fd)


def names_and_sizes(run):
    found = {}
    for top, _, files in os.walk(run.path("live")):
        for f in files:
            path = os.path.join(top, f)
            found[path] = os.stat(path).st_size
    return found


def reference(folder):
    """The bytes of each tensor at each step, taken one step at a time."""
    seen = {}
    with Run(folder, "slow") as run:
        for step in range(STEPS + 1):
            for name in TENSORS:
                got = run.read(name)
                if got is None:
                    test_none_only_at_start(step, name)
                    continue
                if got[0] != step:
                    test(f"a read after step {step} shows that step", False, f"{name} shows step {got[0]}")
                seen[(name, step)] = got[2]
            if step < STEPS:
                run.command("step", 1)
    return seen


def test_none_only_at_start(step, name):
    if step != 0 or "/grads/" not in name:
        test("only gradients have no content, and only before the first step", False, f"{name} at step {step}")


def reader(run, seed, until, out):
    """A child: reads at random until a time; writes what it saw."""
    rng = random.Random(seed)
    with open(out, "w") as f:
        while time.monotonic() < until:
            name = rng.choice(TENSORS)
            got = run.read(name)
            if got is not None:
                print(name, got[0], got[2], file=f)


def spawn_readers(run, folder, count, seconds):
    children = []
    for i in range(count):
        out = os.path.join(folder, f"reader-{i}")
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                reader(run, i, time.monotonic() + seconds, out)
                status = 0
            except BaseException as e:  # the parent prints it
                print(f"# reader {i}: {e!r}", flush=True)
            finally:
                os._exit(status)
        children.append((pid, out))
    return children


def test_equal_under_readers(folder, seen):
    with Run(folder, "fast") as run:
        before = names_and_sizes(run)
        children = spawn_readers(run, folder, 8, 20)
        run.command("step", STEPS)
        reached = run.value("step")
        ended = [os.waitpid(pid, 0)[1] for pid, _ in children]
        test("8 readers end without an error", all(s == 0 for s in ended), ended)
        test("training reached its step under them", reached == str(STEPS), reached)
        wrong, opens, steps = [], 0, set()
        for _, out in children:
            for line in open(out):
                name, step, digest = line.split()
                opens += 1
                steps.add(int(step))
                if seen.get((name, int(step))) != digest:
                    wrong.append(f"{name} at step {step}")
        print(f"# {opens} opens saw {len(steps)} steps")
        test("every open shows the bytes of the step it names", not wrong and opens > 0, "\n".join(wrong[:20]))
        test("some were taken while training", len(steps) > 3, steps)
        run.command("step", MORE_STEPS)
        test("names and sizes of live/ are equal many steps later", names_and_sizes(run) == before)


def test_stopped_reader(folder):
    with Run(folder, "stopped") as run:
        run.command("step", 2)
        pid = os.fork()
        if pid == 0:
            fd = os.open(run.path(TENSORS[0]), os.O_RDONLY)
            os.read(fd, 1000)
            os.kill(os.getpid(), signal.SIGSTOP)
            os._exit(0)
        os.waitpid(pid, os.WUNTRACED)
        run.command("step", 10)
        test("a reader stopped half way does not keep training from its next steps", run.value("step") == "12",
             run.value("step"))
        os.kill(pid, signal.SIGCONT)
        test("... and goes on when it is continued", os.waitpid(pid, 0)[1] == 0)


def test_many_opens(folder):
    import resource

    resource.setrlimit(resource.RLIMIT_NOFILE, (min(12000, resource.getrlimit(resource.RLIMIT_NOFILE)[1]),) * 2)
    with Run(folder, "many", "--set", "take_memory=2M") as run:
        run.command("step", 1)
        held, refused, other = [], 0, []
        name = run.path(TENSORS[1])
        for i in range(10000):
            if i % 500 == 499:
                run.command("step", 1)
            try:
                held.append(os.open(name, os.O_RDONLY))
            except OSError as e:
                refused += e.errno == 105  # ENOBUFS
                if e.errno != 105:
                    other.append(repr(e))
        test("10,000 opens meet take_memory", refused > 0 and not other, f"{len(held)} held, {refused} refused, {other[:3]}")
        test("opens of one version share its copy", len(held) > 1000, f"{len(held)} held, {refused} refused")
        run.command("step", 5)
        test("... and training goes on", run.value("step") == "26", run.value("step"))
        for fd in held:
            os.close(fd)
        test("... and closing them gives the memory back", run.read(TENSORS[1]) is not None)
        names = names_and_sizes(run)
        run.command("take_memory", "100M")
        test("... and all of it at once fits in more", refused_at_once(names) == 0)


def refused_at_once(names):
    held, refused = [], 0
    for name in names:
        try:
            held.append(open(name, "rb"))
        except OSError:
            refused += 1
    return refused


def main():
    if not os.path.exists(os.path.join(BUILD, "gatherfs-mountd")):
        print("1..0 # SKIP built without FUSE")
        return 77
    no_mount = os.environ.get("GFS_NO_MOUNT") or ("" if os.path.exists("/dev/fuse") else "there is no /dev/fuse")
    if no_mount:
        print(f"1..0 # SKIP {no_mount}")
        return 77
    folder = tempfile.mkdtemp(prefix="gatherfs-readers.")
    signal.alarm(280)
    try:
        with open(os.path.join(folder, "text"), "w") as f:
            f.writelines(f"{i} bottles of beer on the wall, {i} bottles of beer\n" for i in range(400))
        with open(os.path.join(folder, "config.json"), "w") as f:
            f.write(SMALL_MODEL)
        test_equal_under_readers(folder, reference(folder))
        test_stopped_reader(folder)
        if not DEVICE:
            test_many_opens(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(f"1..{number}")
    return failed != 0


if __name__ == "__main__":
    sys.exit(main())
