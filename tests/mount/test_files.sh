#!/bin/sh
# Every file of the mount with the programs people use.
exec "$GFS_BUILD/tests/mount/files"
