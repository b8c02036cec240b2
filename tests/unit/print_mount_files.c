/* print_mount_files.c - the files that the tables of the mount daemon list, for the test of the man
 * pages. */
#include "config.h"

#include <stdio.h>

#include "fsmount/control.h"
#include "fsmount/status.h"

int main(void) {
    for (uint32_t i = 0; i < status_file_count(); i++)
        printf("status/%s\n", status_file_name(i));
    for (uint32_t i = 0; i < control_file_count(); i++)
        printf("control/%s\n", control_file_name(i));
    for (uint32_t i = 1; i < RANK_FILE_COUNT; i++)
        printf("ranks/%s\n", status_rank_file_name(i));
    return 0;
}
