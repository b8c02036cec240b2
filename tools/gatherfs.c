/* gatherfs.c - the command line. */
#include "config.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "run/child.h"
#include "run/client.h"
#include "run/cmdline.h"
#include "run/offline.h"
#include "run/supervisor_main.h"
#include "store/ckpt.h"

enum { EXIT_USAGE = 2 };

static int run_main(int argc, char **argv) {
    struct request q;
    struct err err = {0};
    int rc = cmdline_run(argc - 1, argv + 1, &q, &err);
    if (rc) {
        fprintf(stderr, "gatherfs run: %s\n", err.text);
        if (rc == -EINVAL)
            fputs("`gatherfs run --help` shows the options.\n", stderr);
        return rc == -EINVAL || rc == -ERANGE ? EXIT_USAGE : EXIT_FAILURE;
    }
    int code = supervisor_run(&q);
    cmdline_free(&q);
    return code;
}

/* What the program of the ranks does for argv[0]. */
static int rank_program(char *option, int argc, char **argv) {
    char program[RUNDIR_PATH_BYTES];
    struct err err = {0};
    char **args = calloc((size_t)argc + 2, sizeof *args);
    if (!args || child_program("gatherfs-rank", program, sizeof program, &err)) {
        fprintf(stderr, "gatherfs %s: %s\n", argv[0], args ? err.text : "no memory");
        free(args);
        return EXIT_FAILURE;
    }
    args[0] = program;
    args[1] = option;
    memcpy(args + 2, argv + 1, (size_t)(argc - 1) * sizeof *args);
    execv(program, args);
    fprintf(stderr, "gatherfs %s: %s: %s\n", argv[0], program, strerror(errno));
    free(args);
    return EXIT_FAILURE;
}

/* It knows what a step is made of: it prints the plan. */
static int plan_main(int argc, char **argv) {
    static char option[] = "--plan";
    return rank_program(option, argc, argv);
}

/* It opens GPUs, and so it knows which there are. */
static int devices_main(int argc, char **argv) {
    static char option[] = "--devices";
    return rank_program(option, argc, argv);
}

struct command_line {
    const char *name;
    int (*main)(int argc, char **argv);
    const char *usage, *help;
};

static const struct command_line commands[] = {
    {"run", run_main, "run [OPTION]... MNT", "train; the state of the run is under MNT"},
    {"stop", client_stop_main, "stop MNT|RUN_DIR", "snapshot, stop training, unmount"},
    {"status", client_status_main, "status MNT|RUN_DIR", "show in one screen what a run does"},
    {"command", client_command_main, "command MNT|RUN_DIR NAME VALUE [ID]",
     "what writing \"VALUE ID\" to MNT/control/NAME does, also without a mount"},
    {"mount", offline_main, "mount [--background] [--allow-other] RUN_DIR MNT",
     "show the snapshots of a run that does not run"},
    {"ckpt", ckpt_main, "ckpt list|verify|rm RUN_DIR [NAME]...",
     "list, check and remove snapshots"},
    {"plan", plan_main, "plan [OPTION]...",
     "units and bytes a rank, for any model and number of ranks; the options are those of run"},
    {"devices", devices_main, "devices", "list the GPUs of this host, or say why there are none"},
};
enum { COMMAND_COUNT = sizeof commands / sizeof commands[0] };

static void help(FILE *out) {
    fputs("usage: gatherfs COMMAND ...\n\n"
          "Trains a language model whose state is sharded over ranks, and shows it as a "
          "directory.\n\n",
          out);
    for (size_t i = 0; i < COMMAND_COUNT; i++)
        fprintf(out, "  %-44s %s\n", commands[i].usage, commands[i].help);
    fputs("\n  gatherfs COMMAND --help, gatherfs --version\n\n", out);
    cmdline_help(out);
}

static int command_help(const struct command_line *c) {
    static char help_option[] = "--help";
    char *args[] = {help_option, help_option, NULL};
    if (c->main == run_main)
        cmdline_help(stdout);
    else if (c->main == ckpt_main)
        return ckpt_main(2, args);
    else
        printf("usage: gatherfs %s\n\n%s\n", c->usage, c->help);
    return EXIT_SUCCESS;
}

/* For the completion of the shell: the commands, or the options of `run`. */
static int list_options(void) {
    cmdline_list_options(stdout);
    return EXIT_SUCCESS;
}

static int list_commands(void) {
    for (size_t i = 0; i < COMMAND_COUNT; i++)
        puts(commands[i].name);
    return EXIT_SUCCESS;
}

static int unknown(const char *word) {
    const char *names[COMMAND_COUNT];
    char hint[120];
    for (size_t i = 0; i < COMMAND_COUNT; i++)
        names[i] = commands[i].name;
    cmdline_suggest(word, names, COMMAND_COUNT, hint, sizeof hint);
    fprintf(stderr, "gatherfs: there is no command '%.60s'%s\n`gatherfs --help` shows them.\n",
            word, hint);
    return EXIT_USAGE;
}

static bool wants_help(int argc, char **argv) {
    for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++)
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0)
            return true;
    return false;
}

int main(int argc, char **argv) {
    /* A file that may not grow (ulimit -f) is an error, EFBIG, to the processes started here too.
     */
    signal(SIGXFSZ, SIG_IGN);
    log_open("gatherfs", LEVEL_INFO);
    if (argc < 2) {
        help(stderr);
        return EXIT_USAGE;
    }
    const char *word = argv[1];
    if (strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0 || strcmp(word, "help") == 0) {
        help(stdout);
        return EXIT_SUCCESS;
    }
    if (strcmp(word, "--version") == 0) {
        printf("gatherfs %s (MPI: %s)\n", PACKAGE_VERSION, GFS_MPI_NAME);
        return EXIT_SUCCESS;
    }
    if (strcmp(word, "--list-options") == 0)
        return list_options();
    if (strcmp(word, "--list-commands") == 0)
        return list_commands();
    for (size_t i = 0; i < COMMAND_COUNT; i++)
        if (strcmp(word, commands[i].name) == 0)
            return wants_help(argc - 1, argv + 1) ? command_help(&commands[i])
                                                  : commands[i].main(argc - 1, argv + 1);
    return unknown(word);
}
