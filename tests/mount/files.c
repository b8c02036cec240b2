/* files.c - every file of the mount with the programs people use. */
#include "config.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "mount_check.h"

/* ---- sizes: what stat says is what read gives, for each file */

struct walk {
    unsigned files, dirs, wrong;
};

static void walk_file(struct walk *w, int dirfd, const char *name, const char *path) {
    struct stat before, st;
    uint64_t total = 0;
    static char buffer[1 << 20];
    ssize_t n;
    int fd = openat(dirfd, name, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || fstatat(dirfd, name, &before, AT_SYMLINK_NOFOLLOW) != 0 || fstat(fd, &st) != 0) {
        note("%s/%s: %s", path, name, strerror(errno));
        w->wrong++;
        return;
    }
    while ((n = read(fd, buffer, sizeof(buffer))) > 0)
        total += (uint64_t)n;
    close(fd);
    w->files++;
    if (n < 0 || total != (uint64_t)st.st_size || st.st_ino != before.st_ino ||
        st.st_size != before.st_size) {
        note("%s/%s: size %lld, then %lld, read %llu, error %s", path, name,
             (long long)before.st_size, (long long)st.st_size, (unsigned long long)total,
             n < 0 ? strerror(errno) : "none");
        w->wrong++;
    }
}

static void walk(struct walk *w, int fd, const char *path) {
    char below[2048];
    DIR *d = fdopendir(fd);
    w->dirs++;
    for (struct dirent *e; d != NULL && (e = readdir(d)) != NULL;) {
        struct stat st;
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0)
            continue;
        if (fstatat(dirfd(d), e->d_name, &st, AT_SYMLINK_NOFOLLOW) != 0 || st.st_ino != e->d_ino) {
            note("%s/%s: stat or inode number", path, e->d_name);
            w->wrong++;
        } else if (S_ISDIR(st.st_mode)) {
            snprintf(below, sizeof(below), "%s/%s", path, e->d_name);
            walk(w, openat(dirfd(d), e->d_name, O_RDONLY | O_DIRECTORY | O_CLOEXEC), below);
        } else {
            walk_file(w, dirfd(d), e->d_name, path);
        }
    }
    if (d != NULL)
        closedir(d);
}

static void sizes(struct fake_world *f) {
    struct walk w = {0};
    walk(&w, open(f->mnt, O_RDONLY | O_DIRECTORY | O_CLOEXEC), "");
    note("%u files in %u directories", w.files, w.dirs);
    check(w.wrong == 0 && w.files > 150, "every file's size is what is read from it");
}

/* ---- bytes */

static void bytes(struct fake_world *f) {
    char path[600];
    struct version v;
    int wrong = 0;
    static const char *const places[] = {"live", "pins/pinned", "snapshots/first"};
    for (uint32_t p = 0; p < 3; p++) {
        for (uint32_t a = 0; a < ARRAY_COUNT; a++) {
            if (p == 2 && a == ARRAY_GRADS)
                continue;
            snprintf(path, sizeof(path), "%s/%s/transformer.h.0.attn.weight.npy", places[p],
                     array_names[a]);
            wrong += check_file(f, path, a, "transformer.h.0.attn.weight", true, &v) != 0;
            snprintf(path, sizeof(path), "%s/raw/%s/transformer.h.1.mlp.weight", places[p],
                     array_names[a]);
            wrong += check_file(f, path, a, "transformer.h.1.mlp.weight", false, &v) != 0;
            snprintf(path, sizeof(path), "%s/%s/odd%%2Fname%%251.npy", places[p], array_names[a]);
            wrong += check_file(f, path, a, "odd/name%1", true, &v) != 0;
            snprintf(path, sizeof(path), "%s/raw/%s/scale", places[p], array_names[a]);
            wrong += check_file(f, path, a, "scale", false, &v) != 0;
        }
    }
    check(wrong == 0, "live, pinned and snapshot tensors hold the bytes of the version they name");
    int fd = open_at(f, O_RDONLY, "live/params/transformer.h.0.none.npy");
    check(fd >= 0, "a tensor of no elements can be opened");
    close(fd);
}

static void ranges(struct fake_world *f) {
    int wrong = 0;
    struct version v = {0};
    srand(7);
    int fd = open_at(f, O_RDONLY, "live/params/transformer.h.1.mlp.weight.npy");
    check_version(fd, &v);
    for (int i = 0; i < 300; i++) {
        uint64_t first = (uint64_t)rand() % (1024 * 1025 - 1), most = 1024 * 1025 - first;
        uint64_t count = (uint64_t)rand() % (most < 5000 ? most : 5000) + 1;
        wrong += check_range(f, fd, ARRAY_PARAMS, "transformer.h.1.mlp.weight", true, &v, first,
                             count <= most ? count : most) != 0;
    }
    check(wrong == 0, "300 random ranges across ranks and headers are right");
    float *p = mmap(NULL, 128 + 4 * 1024 * 1025, PROT_READ, MAP_SHARED, fd, 0);
    check(p != MAP_FAILED && p[32] == fake_value(v.epoch, v.gen, ARRAY_PARAMS, 2, 0),
          "MAP_SHARED works on a live file");
    if (p != MAP_FAILED)
        munmap(p, 128 + 4 * 1024 * 1025);
    close(fd);
}

/* ---- programs */

static void programs(struct fake_world *f) {
    check(shell(f, "ls -lR $M >ls; test $(wc -l <ls) -gt 200; find $M | wc -l; du -s $M; stat "
                   "$M/live/params") == 0,
          "ls -lR, find, du, stat");
    check(shell(f, "for p in live/params pins/pinned/exp_avg snapshots/first/params; do\n"
                   "  x=$M/$p/transformer.h.1.mlp.weight.npy\n"
                   "  cat $x >a; dd if=$x of=b bs=70000 status=none; cp $x c; od -An -v -tx1 $x | "
                   "tr -d ' \\n' >h\n"
                   "  cmp a b; cmp a c; test $(stat -c %%s a) = $((2 * $(wc -c <h) / 4)); "
                   "sha256sum $x a | awk '{print $1}' | uniq | wc -l | grep -x 1\n"
                   "done") == 0,
          "cat, dd, cp, od and sha256sum agree");
    check(
        shell(
            f,
            "cp -r $M/snapshots/first s; cp -r $M/live l; tar cf t.tar -C $M pins/pinned live; "
            "mkdir x; tar xf t.tar -C x\n"
            "diff -r s $M/snapshots/first; diff -r l x/live; diff -r x/pins/pinned $M/pins/pinned\n"
            "test -w s/hf; test -w s/hf/config.json") == 0,
        "cp -r and tar agree, and a copy can be written to");
    if (check_have("rsync"))
        check(shell(f, "rsync -a $M/live $M/pins . && diff -r live $M/live && rsync -ac "
                       "--itemize-changes $M/live . >again; not 'grep -q ^.f again'") == 0,
              "rsync -a copies live files, and finds nothing to do again");
    else
        check_skip("rsync", "rsync is not there");
    if (check_have("busybox"))
        check(shell(f, "x=$M/live/raw/params/transformer.wte.weight; busybox cat $x >a; busybox cp "
                       "$x b; busybox dd if=$x of=c 2>/dev/null; cmp a b; cmp a c; cmp a $x\n"
                       "test $(busybox cat $M/status/step) = 11; busybox cat "
                       "$M/status/metrics.tsv | cmp - $R/metrics.tsv") == 0,
              "busybox cat, cp and dd");
    else
        check_skip("busybox", "busybox is not there");
    check(shell(f, "cmp $M/live/model.safetensors $M/pins/pinned/model.safetensors; cmp "
                   "$M/pins/pinned/hf/model.safetensors $M/snapshots/first/hf/model.safetensors\n"
                   "head -c 8 $M/live/model.safetensors | od -An -tu8; test -s "
                   "$M/snapshots/first/hf/config.json") == 0,
          "model.safetensors is the same live, pinned and in hf/");
    check(shell(f, "for i in $R/snapshots/first/*; do cmp $i $M/snapshots/first/shards/$(basename "
                   "$i); done; test $(ls $M/snapshots/first/shards | wc -l) = 3") == 0,
          "shards/ shows the files as they lie on disk");
}

static void python(struct fake_world *f) {
    const char *py = "/usr/bin/python3";
    char probe[128];
    snprintf(probe, sizeof(probe), "%s -c 'import numpy' 2>/dev/null", py);
    if (system(probe) != 0) {
        check_skip("numpy", "numpy is not there");
        return;
    }
    check(shell(f,
                "%s - <<'E'\n"
                "import numpy as np, os\n"
                "m = os.environ['M']\n"
                "for p in ('live/params', 'pins/pinned/params', 'snapshots/first/params'):\n"
                "    a = np.load(f'{m}/{p}/transformer.h.1.mlp.weight.npy')\n"
                "    b = np.load(f'{m}/{p}/transformer.h.1.mlp.weight.npy', mmap_mode='r')\n"
                "    assert a.shape == (1024, 1025) and a.dtype == np.float32 and (a == b).all()\n"
                "    assert np.load(f'{m}/{p}/scale.npy').shape == ()\n"
                "    assert np.load(f'{m}/{p}/transformer.h.0.none.npy').shape == (0, 3)\n"
                "    r = np.fromfile(f'{m}/{p.rsplit(\"/\", "
                "1)[0]}/raw/params/transformer.h.1.mlp.weight', dtype='<f4')\n"
                "    assert (r == a.ravel()).all()\n"
                "import json, struct\n"
                "with open(f'{m}/live/model.safetensors', 'rb') as s:\n"
                "    n, = struct.unpack('<Q', s.read(8)); h = json.loads(s.read(n)); d = s.read()\n"
                "t = h['transformer.h.1.mlp.weight']; lo, hi = t['data_offsets']\n"
                "assert (np.frombuffer(d[lo:hi], '<f4') == "
                "np.load(f'{m}/live/params/transformer.h.1.mlp.weight.npy').ravel()).all()\n"
                "s = json.load(open(f'{m}/snapshots/first/train_state.json')); assert s['step'] == "
                "11, s\n"
                "E\n",
                py) == 0,
          "numpy loads and maps, the safetensors header says where tensors lie, train_state.json "
          "is JSON");
}

static void status_files(struct fake_world *f) {
    check(shell(f, "grep -qx paused $M/status/state; grep -qx 11 $M/status/step; grep -qx 2 "
                   "$M/status/world_size; test $(cat $M/status/epoch).$(cat $M/status/gen) = 3.11\n"
                   "grep -qx nan $M/status/eta_seconds; test $(wc -l <$M/status/tensors.tsv) = 9; "
                   "grep -q 'lr = ' $M/status/config\n"
                   "grep -qE '^odd%%2Fname%%251\\s' $M/status/tensors.tsv; cat $M/status/log "
                   "$M/status/events $M/status/last_error $M/README $M/version >/dev/null\n"
                   "grep -qx waiting $M/ranks/1/state; test $(wc -l <$M/ranks/0/holds) = 4; cat "
                   "$M/ranks/0/last_seen >/dev/null") == 0,
          "status/ and ranks/ show their values");
    check(shell(f, "printf 'rss_bytes\\t1048576\\ntake_bytes\\t0\\ndevice/params\\t4096\\n"
                   "host/batch\\t12\\n' | cmp - $M/ranks/0/memory\n"
                   "printf 'device\\tfake\\nname\\ta device of tests\\nid\\tid-1\\n' | cmp - "
                   "$M/ranks/1/device\n"
                   "grep -qx fake $M/status/device; grep -qx 0.25 $M/status/mfu") == 0,
          "ranks/N/memory and ranks/N/device show what the rank said, status/ the MFU");
    if (check_have("sqlite3"))
        check(shell(f, "sqlite3 $M/status/run.db 'select count(*) from sqlite_schema; pragma "
                       "integrity_check' | grep -x ok") == 0,
              "sqlite3 opens status/run.db");
    else
        check_skip("sqlite3", "sqlite3 is not there");
    char expect[64];
    fake_lock(f);
    fake_step(f);
    snprintf(expect, sizeof(expect), "%llu", (unsigned long long)f->step);
    fake_unlock(f);
    usleep(100000);
    check(strcmp(read_at(f, "status/step"), expect) == 0, "a value is the newest at each open");
}

static void tail(struct fake_world *f) {
    char script[800];
    snprintf(script, sizeof(script), "timeout 5 tail -n1 -s0.1 -f %s/status/metrics.tsv >%s/tailed",
             f->mnt, f->dir);
    FILE *p = popen(script, "r");
    usleep(600000);
    for (int i = 0; i < 3; i++) {
        fake_lock(f);
        fake_step(f);
        fake_unlock(f);
        usleep(200000);
    }
    pclose(p);
    check(shell(f, "tail -n3 $R/metrics.tsv >a; tail -n3 $T/../tailed >b; cmp a b; cmp "
                   "$R/metrics.tsv $M/status/metrics.tsv") == 0,
          "tail -f follows metrics.tsv");
}

static void refusals(struct fake_world *f) {
    static const struct {
        const char *script, *what;
    } cases[] = {
        {"not 'echo x >$M/live/params/scale.npy'", "a live file can't be written"},
        {"not 'echo x >>$M/status/step'", "a status file can't be appended to"},
        {"not 'touch $M/new'; not 'mkdir $M/dir'; not 'mkdir $M/live/x'; not 'ln -s a $M/link'; "
         "not 'mv $M/README $M/R';"
         " not 'rm $M/README'",
         "names can't be made or taken"},
        {"not 'rm -f $M/snapshots/first/params/scale.npy'; not 'truncate -s 0 "
         "$M/pins/pinned/raw/params/scale';"
         " not 'chmod 777 $M/README'",
         "snapshots and pins can't be changed"},
        {"not 'mkdir $M/snapshots/x 2>e'; grep -q 'not permitted' e; grep -q control/snapshot "
         "$M/status/last_error",
         "mkdir snapshots/X names control/snapshot"},
        {"not 'rmdir $M/snapshots/none 2>e'; grep -q 'No such file' e",
         "rmdir of what is not there"},
        {"not 'cat $M/live/params/none.npy'; not 'cat $M/snapshots/first/params/scale'; not 'ls "
         "$M/snapshots/second'",
         "names that are not there"},
        {"test $(df --output=size $M | tail -1) -gt 0",
         "df shows the size of the run's file system"},
        {"test $(stat -c %a $M/control/step) = 600; test $(stat -c %a $M/live/params/scale.npy) = "
         "444",
         "modes"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        check(shell(f, "%s", cases[i].script) == 0, "%s", cases[i].what);
}

static void removal(struct fake_world *f) {
    struct version v = {3, 11, 11};
    int fd = open_at(f, O_RDONLY, "snapshots/first/params/transformer.h.1.mlp.weight.npy");
    int pin = open_at(f, O_RDONLY, "pins/pinned/params/transformer.h.1.mlp.weight.npy");
    check(shell(f, "rmdir $M/snapshots/first; not 'test -e $M/snapshots/first'; not 'test -e "
                   "$R/snapshots/first'; "
                   "test \"$(ls $M/snapshots)\" = kept") == 0,
          "rmdir snapshots/X deletes it");
    check(check_range(f, fd, ARRAY_PARAMS, "transformer.h.1.mlp.weight", true, &v, 0,
                      1024 * 1025) == 0,
          "an open file of a removed snapshot goes on reading");
    check(shell(f, "rmdir $M/pins/pinned; not 'test -e $M/pins/pinned'; mkdir $M/pins/pinned; test "
                   "$(cat $M/pins/pinned/params/scale.npy | wc -c) = 132") == 0,
          "rmdir pins/X lets go, and mkdir makes it anew");
    check(check_range(f, pin, ARRAY_PARAMS, "transformer.h.1.mlp.weight", true, &v, 0,
                      1024 * 1025) == 0,
          "an open file of a removed pin goes on reading");
    close(fd);
    close(pin);
}

static void speed(struct fake_world *f) {
    double began = seconds_now();
    int rc = shell(f, "for i in 1 2 3; do ls -lR $M >/dev/null; done");
    double listing = (seconds_now() - began) / 3;
    static char buffer[1 << 20];
    int fd = open_at(f, O_RDONLY, "live/raw/params/transformer.h.1.mlp.weight");
    began = seconds_now();
    uint64_t total = 0;
    for (int i = 0; i < 100; i++)
        for (off_t at = 0; at < 4 << 20; at += sizeof(buffer))
            total += (uint64_t)pread(fd, buffer, sizeof(buffer), at);
    note("ls -lR %.0f ms; cached reads %.1f GB/s", listing * 1e3,
         (double)total / (seconds_now() - began) / 1e9);
    close(fd);
    check(rc == 0 && listing < 2, "ls -lR of the whole mount is fast");
}

static void offline(struct fake_world *f) {
    fake_lock(f);
    fake_snapshot(f, "kept");
    fake_unlock(f);
    struct fake_world *o = fake_start_offline(f->run_dir);
    o->world_size = 0;
    check(shell(o, "grep -qx offline $M/status/state; grep -qx nan $M/status/mfu; test $(cat "
                   "$M/status/step) -ge 11; test -z "
                   "\"$(ls $M/live/params)\"; not 'test -e $M/control'; ls -lR $M >/dev/null\n"
                   "tail -n +2 $M/status/metrics.tsv | tail -1 | cut -f1 | grep -x $(cat "
                   "$M/status/step); sha256sum $M/snapshots/kept/params/* $M/snapshots/kept/hf/* "
                   "$M/snapshots/kept/shards/* >/dev/null\n"
                   "not 'mkdir $M/snapshots/x'; not 'rmdir $M/snapshots/kept'") == 0,
          "offline: snapshots and status, and nothing can be changed");
    int same = shell(f, "cp -r $M/snapshots/kept a; ") == 0;
    char path[600];
    snprintf(path, sizeof(path), "diff -r a %s/snapshots/kept", o->mnt);
    check(same && shell(f, "cp -r $M/snapshots/kept a; %s", path) == 0,
          "offline: the same snapshot files");
    fake_end(o);
}

int main(void) {
    struct fake_world *f = fake_start(2, NULL);
    check_begin(f, 110);
    check(strcmp(read_at(f, "status/loss"), "nan") == 0, "the loss before the first step is nan");
    check(strcmp(read_at(f, "status/mfu"), "nan") == 0, "so is the MFU");
    check(strcmp(read_at(f, "status/device"), "auto") == 0,
          "before a rank says which device it has, the knob's value is shown");
    check(open_at(f, O_RDONLY, "live/grads/scale.npy") == -ENODATA,
          "no gradient before the first step: ENODATA");
    fake_lock(f);
    fake_step(f);
    fake_snapshot(f, "first");
    fake_unlock(f);
    check(shell(f, "mkdir $M/pins/pinned; test -d $M/pins/pinned/grads") == 0,
          "mkdir pins/X makes a pin");
    sizes(f);
    bytes(f);
    ranges(f);
    programs(f);
    python(f);
    status_files(f);
    tail(f);
    refusals(f);
    speed(f);
    offline(f);
    removal(f);
    fake_end(f);
    return check_end();
}
